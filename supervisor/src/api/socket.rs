//! A socket that hyper reads and writes while somebody else watches whether the peer is there.
//!
//! hyper looks for the end of a connection only while its own buffer is empty: one byte behind
//! the request, and a client that leaves is not noticed until its answer is complete.

use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};

/// A connected socket of the runtime, used through a shared reference.
pub trait Socket: AsFd + Send + Sync + 'static {
    /// Waits until one of the interests is met.
    fn ready(&self, interest: Interest) -> impl Future<Output = io::Result<Ready>> + Send;
    /// Whether a read may bring something.
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Whether a write may take something.
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Reads without waiting.
    fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize>;
    /// Writes without waiting.
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
}

macro_rules! impl_socket {
    ($stream:ty) => {
        impl Socket for $stream {
            fn ready(&self, interest: Interest) -> impl Future<Output = io::Result<Ready>> + Send {
                Self::ready(self, interest)
            }

            fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Self::poll_read_ready(self, cx)
            }

            fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                Self::poll_write_ready(self, cx)
            }

            fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
                Self::try_read(self, bytes)
            }

            fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
                Self::try_write_vectored(self, slices)
            }
        }
    };
}

impl_socket!(TcpStream);
impl_socket!(UnixStream);

/// One of several owners of a socket: one of them reads and writes, any may watch.
#[derive(Debug)]
pub(super) struct Shared<S>(Arc<S>);

impl<S: Socket> Shared<S> {
    /// The first owner.
    pub(super) fn new(socket: S) -> Self {
        Self(Arc::new(socket))
    }

    /// Another one.
    pub(super) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    /// Returns when the peer has closed the connection or its sending half, or when the
    /// connection failed, whatever is still unread.
    pub(super) async fn closed(&self) {
        // Neither interest is met by data, so this sleeps while bytes lie unread. The priority
        // interest wakes for a closed reading half; urgent data itself is not registered for.
        let interest = Interest::PRIORITY | Interest::ERROR;
        loop {
            match self.0.ready(interest).await {
                Ok(ready) if ready.is_read_closed() || ready.is_error() => return,
                Ok(_) => tokio::task::yield_now().await,
                Err(_) => return,
            }
        }
    }

    /// Whether at least this many bytes (at most 16 KB) lie unread.
    pub(super) fn has_unread<const N: usize>(&self) -> bool {
        use nix::sys::socket::{MsgFlags, recv};
        use std::os::fd::AsRawFd as _;
        let mut bytes = [0; N];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        recv(self.0.as_fd().as_raw_fd(), &mut bytes, flags).is_ok_and(|count| count == N)
    }
}

impl<S: Socket> AsyncRead for Shared<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(buf.initialize_unfilled()) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl<S: Socket> AsyncWrite for Shared<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        use nix::sys::socket::{Shutdown, shutdown};
        use std::os::fd::AsRawFd as _;
        let done = shutdown(self.0.as_fd().as_raw_fd(), Shutdown::Write);
        Poll::Ready(done.map_err(io::Error::from))
    }
}
