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
