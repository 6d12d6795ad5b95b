//! The running supervisor: event loop, listeners, signals, and the way out.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

use crate::api::connection::{Bounds, serve};
use crate::api::{App, control_routes, routes};
use crate::event_loop::{Core, CoreOptions};
use crate::exit::{Exit, StartError};
use crate::start::Ready;

/// How long clients may take to receive the end of their answer once all answers have one.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(5);

/// Serves until a signal says stop and the event loop has drained, or the event loop fails.
///
/// The first SIGTERM or SIGINT lets streams finish within `drain_timeout_s`; a second ends them at
/// once. While streams finish, new requests get a truthful 503.
///
/// # Errors
///
/// If the system refuses signals or sockets to the runtime.
pub async fn run(ready: Ready) -> Result<Exit, StartError> {
    let internal =
        |error: std::io::Error| StartError::new(Exit::Internal, format!("cannot start: {error}"));
    let mut signals = Signals::new().map_err(internal)?;
    let listener = TcpListener::from_std(ready.listener).map_err(internal)?;
    let control = UnixListener::from_std(ready.control).map_err(internal)?;
    let (core, event_loop) = Core::start(CoreOptions {
        config: ready.config.clone(),
        vocabulary: ready.text.clone(),
        model_name: ready.model.name.clone(),
        arch: ready.model.arch.clone(),
    });
    let sessions = Arc::new(core.clone());
    let app = Arc::new(App::new(sessions, ready.text, ready.model, &ready.config));
    let bounds = Bounds::new(&ready.config);
    let (stop, stopped) = watch::channel(());
    let public = tokio::spawn(serve(listener, routes(app.clone()), bounds, over(stopped.clone())));
    let private = tokio::spawn(serve(control, control_routes(app), bounds, over(stopped)));
    let (listen, model) = (ready.config.listen, ready.config.model.display());
    tracing::info!(%listen, %model, control = %ready.control_path.display(), "serving");

    let exit = until_drained(&core, event_loop, &mut signals).await;
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
            name = signals.next() => {
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

/// The signals that mean stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
