//! Connections: accepting them within a bound, and cutting those that stand still.
//!
//! A client that takes no byte for the stall time while bytes wait for it is cut; so is one that
//! does not finish sending its request head. Neither costs anything meanwhile but its connection.

use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

/// Connections of one listener at once; more wait in the system's backlog.
const CONNECTIONS_MAX: usize = 1024;

/// How long a client may take to send a request head, or keep an idle connection.
const HEAD_TIME_MAX: Duration = Duration::from_secs(60);

/// Wait after an accept that failed for want of descriptors or memory.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// What connections come from.
pub trait Accept: Send {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Send + 'static;
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
    stall: Duration,
    shutdown: impl Future<Output = ()> + Send,
) {
    let bound = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        while connections.try_join_next().is_some() {}
        let next = async {
            let permit = Arc::clone(&bound).acquire_owned().await;
            (permit.expect("the semaphore is never closed"), listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            next = next => next,
            () = &mut shutdown => break,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                if !is_of_one_connection(&error) {
                    tracing::error!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
                continue;
            }
        };
        let connection = connect(stream, router.clone(), stall);
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            // Ends of connections are no news: the access log tells what happened to requests.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(permit);
        });
    }
    drop(listener);
    graceful.shutdown().await;
    while connections.join_next().await.is_some() {}
}

type Watched<S> =
    http1::Connection<TokioIo<std::pin::Pin<Box<TimeoutStream<S>>>>, TowerToHyperService<Router>>;

fn connect<S>(stream: S, router: Router, stall: Duration) -> Watched<S>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(stall));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router))
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

    use super::{bind_control, serve};

    /// Longest that a test waits for what must come.
    const PATIENCE: Duration = Duration::from_secs(20);

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
        let stall = Duration::from_millis(300);
        tokio::spawn(serve(socket.bind(), router, stall, async { drop(over.await) }));
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
        let server = serve(socket.bind(), router, PATIENCE, async { drop(over.await) });
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
