//! The running supervisor: event loop, listeners, signals, and the way out.

use std::sync::Arc;
use std::time::Duration;

use shared::config::Config;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

use crate::api::connection::{Bounds, serve};
use crate::api::{App, control_routes, routes};
use crate::event_loop::{Core, CoreOptions};
use crate::exit::{Exit, StartError};
use crate::journal::RateLimit;
use crate::start::Ready;

/// How long clients may take to receive the end of their answer once all answers have one.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(5);

/// Makes everything ready and serves until a signal says stop and the event loop has drained, or
/// the event loop fails.
///
/// The first SIGTERM or SIGINT lets streams finish within `drain_timeout_s`; a second ends them at
/// once. While streams finish, new requests get a truthful 503. Before anything is served, the
/// first ends the process at once.
///
/// # Errors
///
/// What [`Ready::new`] says, or if the system refuses signals or sockets to the runtime.
pub async fn run(config: Config) -> Result<Exit, StartError> {
    let mut signals = Signals::new().map_err(internal)?;
    let mut ready = tokio::task::spawn_blocking(move || Ready::new(config));
    tokio::select! {
        ready = &mut ready => {
            let ready = ready.map_err(|error| internal(std::io::Error::other(error)))?;
            serve_until_stopped(ready?, &mut signals).await
        }
        name = signals.stop() => {
            tracing::info!(signal = name, "stopped before anything was served");
            Ok(Exit::Ok)
        }
    }
}

fn internal(error: std::io::Error) -> StartError {
    StartError::new(Exit::Internal, format!("cannot start: {error}"))
}

async fn serve_until_stopped(ready: Ready, signals: &mut Signals) -> Result<Exit, StartError> {
    let listener = TcpListener::from_std(ready.listener).map_err(internal)?;
    let control = UnixListener::from_std(ready.control).map_err(internal)?;
    let (core, event_loop) = Core::start(CoreOptions {
        config: ready.config.clone(),
        vocabulary: ready.text.clone(),
        model_name: ready.model.name.clone(),
        arch: ready.model.arch.clone(),
        header_digest: ready.header_digest,
    });
    let sessions = Arc::new(core.clone());
    let app = Arc::new(App::new(sessions, ready.text, ready.model, &ready.config));
    let bounds = Bounds::new(&ready.config);
    let (stop, stopped) = watch::channel(());
    let public = tokio::spawn(serve(listener, routes(app.clone()), bounds, over(stopped.clone())));
    let private = tokio::spawn(serve(control, control_routes(app), bounds, over(stopped)));
    let (listen, model) = (ready.config.listen, ready.config.model.display());
    tracing::info!(%listen, %model, control = %ready.control_path.display(), "serving");

    let exit = until_drained(&core, event_loop, signals).await;
    drop(stop);
    flush(public, private).await;
    // The next supervisor replaces it in any case.
    let _ = std::fs::remove_file(&ready.control_path);
    tracing::info!("stopped");
    Ok(exit)
}

/// Ends when the sender is dropped.
async fn over(mut stopped: watch::Receiver<()>) {
    while stopped.changed().await.is_ok() {}
}

async fn until_drained(core: &Core, event_loop: JoinHandle<()>, signals: &mut Signals) -> Exit {
    let mut event_loop = event_loop;
    let mut is_stopping = false;
    loop {
        tokio::select! {
            ended = &mut event_loop => return judge(ended, is_stopping),
            name = signals.stop() => {
                tracing::info!(signal = name, again = is_stopping, "stopping");
                is_stopping = true;
                core.drain();
            }
        }
    }
}

fn judge(ended: Result<(), JoinError>, is_stopping: bool) -> Exit {
    match ended {
        Ok(()) if is_stopping => Exit::Ok,
        Ok(()) => {
            tracing::error!("the event loop ended without being asked to");
            Exit::Internal
        }
        Err(error) => {
            tracing::error!(%error, "the event loop failed; the service manager restarts us");
            Exit::Internal
        }
    }
}

/// Gives writers time to bring ends to their clients; then connections are cut.
async fn flush(public: JoinHandle<()>, private: JoinHandle<()>) {
    let aborts = [public.abort_handle(), private.abort_handle()];
    let both = async {
        for task in [public, private] {
            if let Err(error) = task.await {
                tracing::error!(%error, "a listener failed");
            }
        }
    };
    if tokio::time::timeout(FLUSH_TIME_MAX, both).await.is_err() {
        for abort in aborts {
            abort.abort();
        }
    }
}

/// The signals that mean stop, and those that mean nothing, but by default would end the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user_1: Signal,
    user_2: Signal,
    limit: RateLimit,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
            limit: RateLimit::default(),
        })
    }

    /// Waits for one that means stop.
    async fn stop(&mut self) -> &'static str {
        loop {
            let ignored = tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => "SIGHUP",
                _ = self.user_1.recv() => "SIGUSR1",
                _ = self.user_2.recv() => "SIGUSR2",
            };
            if self.limit.admit(std::time::Instant::now()).is_some() {
                tracing::info!(signal = ignored, "a signal that means nothing here is ignored");
            }
        }
    }
}
