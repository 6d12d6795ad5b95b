//! Connections: accepting them within a bound, and cutting those that stand still.
//!
//! A client that takes no byte for the stall time while bytes wait for it is cut; so is one that
//! does not finish sending its request head. Neither costs anything meanwhile but its connection,
//! and that only until another client needs it.
//!
//! A client that closes its connection, or only its sending half, has given up its request: what
//! was asked for is cancelled within a second, whatever else it sent before.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{Backlog, listen};
use shared::config::Config;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_io_timeout::TimeoutStream;

use super::crowd::{Activity, Crowd, Observed, Phase};
use super::socket::{Shared, Socket};

/// How long a client may take to send a request head, or keep an idle connection.
const HEAD_TIME_MAX: Duration = Duration::from_secs(60);

/// Longest request head, and most that is read ahead of one connection, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How long an answer that is complete may still be written to a client that has closed its sending
/// half.
const CLOSED_GRACE: Duration = Duration::from_millis(500);

/// How often an open connection is looked at for what nothing wakes us for.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Bytes that may lie unread behind a request that waits for its answer. Behind more, the word
/// that the client left may never reach us.
const UNREAD_BYTES_MAX: usize = 16 * 1024;

/// Wait after an accept that failed for want of descriptors or memory.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Connections of one listener at once, where the limit of descriptors allows it.
const CONNECTIONS_MAX: usize = 4096;

/// What a listener takes even where that limit is absurd.
const CONNECTIONS_MIN: usize = 64;

/// Descriptors left to everything but connections.
const DESCRIPTORS_SPARE: u64 = 256;

/// The bounds of one listener.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections at once. Beyond it the one that has been idle longest makes room.
    pub connections_max: usize,
    /// How long a client may take no byte while bytes wait for it.
    pub stall: Duration,
}

impl Bounds {
    /// As configured, and within this process's limit of descriptors.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        // There are two listeners.
        let share = descriptors.saturating_sub(DESCRIPTORS_SPARE) / 2;
        let share = usize::try_from(share).unwrap_or(usize::MAX);
        Self {
            connections_max: share.clamp(CONNECTIONS_MIN, CONNECTIONS_MAX),
            stall: Duration::from_secs_f64(config.client_stall_timeout_s),
        }
    }
}

/// What connections come from.
pub trait Accept: AsFd + Send {
    /// A connection.
    type Io: Socket;
    /// The next one.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

impl Accept for TcpListener {
    type Io = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // Each token is a small write that must leave at once.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Accept for UnixListener {
    type Io = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(Self::accept(self).await?.0)
    }
}

/// Serves until `shutdown`, then lets requests in flight finish. Returns when the last connection
/// is closed; dropping the future cuts them all.
pub async fn serve<L: Accept>(
    listener: L,
    router: Router,
    bounds: Bounds,
    shutdown: impl Future<Output = ()> + Send,
) {
    // The standard library asks for a short backlog; many clients may knock at once.
    if let Err(error) = listen(&listener, Backlog::MAXCONN) {
        tracing::info!(%error, "the listener's backlog stays as it is");
    }
    let graceful = GracefulShutdown::new();
    let mut crowd = Crowd::new(bounds.connections_max);
    let mut shutdown = pin!(shutdown);
    loop {
        let next = async {
            let accepted = listener.accept().await;
            crowd.make_room().await;
            accepted
        };
        let accepted = tokio::select! {
            accepted = next => accepted,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok(stream) => crowd.add(|activity| {
                connect(stream, router.clone(), bounds.stall, activity, graceful.watcher())
            }),
            Err(error) if !is_of_one_connection(&error) => {
                tracing::error!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
            Err(_) => {}
        }
    }
    drop(listener);
    graceful.shutdown().await;
    crowd.leave().await;
}

/// One connection, until its end or its peer's. Dropping the future drops the requests on it.
fn connect<S: Socket>(
    stream: S,
    router: Router,
    stall: Duration,
    activity: Arc<Activity>,
    watcher: Watcher,
) -> impl Future<Output = ()> + Send + 'static {
    let stream = Shared::new(stream);
    let peer = stream.share();
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(stall));
    let io: TokioIo<Pin<Box<TimeoutStream<Shared<S>>>>> = TokioIo::new(Box::pin(stream));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(io, Observed::new(router, Arc::clone(&activity)));
    let connection = watcher.watch(connection);
    async move {
        tokio::select! {
            // Ends of connections are no news: the access log tells what happened to requests.
            ended = connection => if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            },
            () = gone(&peer, &activity) => tracing::debug!("a client is gone"),
        }
    }
}

/// Returns when nobody waits for an answer on this connection any more.
async fn gone<S: Socket>(peer: &Shared<S>, activity: &Activity) {
    let flooded = async {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let (phase, since) = activity.read();
            if phase == Phase::Answered
                && since.elapsed() >= LOOK_INTERVAL
                && peer.has_unread::<UNREAD_BYTES_MAX>()
            {
                return;
            }
        }
    };
    tokio::select! {
        () = peer.closed() => tokio::time::sleep(CLOSED_GRACE).await,
        () = flooded => {}
    }
}

/// Whether an accept failed because of the connection, not because of this process.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::InvalidInput
    )
}

/// Binds the control socket, open to its owner only. A socket left by a dead supervisor is
/// replaced; that none is alive is the state directory's lock to prove.
///
/// # Errors
///
/// If the directory does not exist or may not be written, or the path is too long for a socket.
pub fn bind_control(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(old) if old.file_type().is_socket() => std::fs::remove_file(path)?,
        // Anything else is not ours to remove: `bind` says that the name is taken.
        _ => {}
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::path::PathBuf;
    use std::time::Duration;

    use axum::Router;
    use axum::body::{Body, Bytes};
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{UnixListener, UnixStream};
    use tokio::sync::{mpsc, oneshot};
    use tokio::time::timeout;

    use super::{Bounds, bind_control, serve};

    /// Longest that a test waits for what must come.
    const PATIENCE: Duration = Duration::from_secs(20);

    const BOUNDS: Bounds = Bounds { connections_max: 1024, stall: PATIENCE };

    /// A control socket in a directory of its own.
    struct Socket(PathBuf);

    impl Socket {
        fn new(name: &str) -> Self {
            let name = format!("strata-socket-{}-{name}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn path(&self) -> PathBuf {
            self.0.join("control.sock")
        }

        fn bind(&self) -> UnixListener {
            UnixListener::from_std(bind_control(&self.path()).unwrap()).unwrap()
        }

        async fn ask(&self, path: &str) -> UnixStream {
            let mut client = UnixStream::connect(self.path()).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            client
        }
    }

    impl Drop for Socket {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Says its name when it is dropped.
    struct Named(&'static str, mpsc::UnboundedSender<&'static str>);

    impl Drop for Named {
        fn drop(&mut self) {
            let _ = self.1.send(self.0);
        }
    }

    /// A body without end.
    fn endless(name: Named) -> Body {
        Body::from_stream(futures_util::stream::unfold(name, |name| async {
            Some((Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 4096])), name))
        }))
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_cut_and_one_that_does_is_not() {
        let socket = Socket::new("stall");
        let (ends, mut ended) = mpsc::unbounded_channel();
        let route = |name: &'static str| {
            let ends = ends.clone();
            get(move || async move { endless(Named(name, ends)) })
        };
        let router =
            Router::new().route("/silent", route("silent")).route("/reader", route("reader"));
        let (_stop, over) = oneshot::channel::<()>();
        let bounds = Bounds { stall: Duration::from_millis(300), ..BOUNDS };
        tokio::spawn(serve(socket.bind(), router, bounds, async { drop(over.await) }));
        let mut reader = socket.ask("/reader").await;
        let _silent = socket.ask("/silent").await;
        let mut taken = vec![0; 4096];
        let reading = async {
            loop {
                reader.read_exact(&mut taken).await.unwrap();
            }
        };
        let first = tokio::select! {
            () = reading => unreachable!("it never ends"),
            first = timeout(PATIENCE, ended.recv()) => first.unwrap(),
        };
        assert_eq!(first, Some("silent"));
    }

    #[tokio::test]
    async fn a_stop_lets_requests_in_flight_finish_and_closes_idle_connections() {
        let socket = Socket::new("stop");
        let (entered, mut entries) = mpsc::channel::<()>(1);
        let (release, released) = tokio::sync::watch::channel(());
        let router = Router::new().route(
            "/",
            get(move || async move {
                entered.send(()).await.unwrap();
                let mut released = released.clone();
                while released.changed().await.is_ok() {}
                "done"
            }),
        );
        let (stop, over) = oneshot::channel::<()>();
        let server = serve(socket.bind(), router, BOUNDS, async { drop(over.await) });
        let server = tokio::spawn(server);
        let mut client = socket.ask("/").await;
        let mut idle = UnixStream::connect(socket.path()).await.unwrap();
        timeout(PATIENCE, entries.recv()).await.unwrap().unwrap();
        drop(stop);
        assert_eq!(timeout(PATIENCE, idle.read(&mut [0])).await.unwrap().unwrap(), 0);
        drop(release);
        let mut answer = String::new();
        timeout(PATIENCE, client.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.ends_with("done"), "{answer}");
        timeout(PATIENCE, server).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_other_files_are_left() {
        let socket = Socket::new("stale");
        drop(bind_control(&socket.path()).unwrap());
        assert!(socket.path().exists());
        drop(bind_control(&socket.path()).unwrap());
        std::fs::remove_file(socket.path()).unwrap();
        std::fs::write(socket.path(), "precious").unwrap();
        assert!(bind_control(&socket.path()).is_err());
        assert_eq!(std::fs::read(socket.path()).unwrap(), b"precious");
    }
}
