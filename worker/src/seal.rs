//! What the process does once, between `exec` and its first frame.
//!
//! 1. Take the link: the one descriptor the supervisor left open, closed on any further `exec`.
//! 2. Offer itself first to the out-of-memory killer, so that the supervisor survives.
//! 3. Name the process for `ps`, whatever the file was called.
#![expect(unsafe_code, reason = "taking an inherited descriptor; its block says why it is sound")]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockaddrLike, SockaddrStorage, getsockname};

/// Why there is no link at the descriptor named.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Standard streams are no link, and a link is taken once.
    #[error("descriptor {0} cannot be the link")]
    Forbidden(RawFd),
    /// Nothing is open there, or it is no Unix socket.
    #[error(
        "descriptor {fd} is no Unix socket ({source}): `serve` is started by strata-supervisor; \
         to measure this machine use `strata-worker bench`"
    )]
    NoSocket {
        /// The descriptor.
        fd: RawFd,
        /// What Linux said about it.
        source: nix::Error,
    },
}

/// Takes the supervisor's end of the link. May succeed once per process.
///
/// # Errors
///
/// [`LinkError`] if the descriptor is no Unix socket or was taken before.
pub fn take_link(fd: RawFd) -> Result<UnixStream, LinkError> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    if fd <= 2 || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(LinkError::Forbidden(fd));
    }
    let no_socket = |source| LinkError::NoSocket { fd, source };
    let name = getsockname::<SockaddrStorage>(fd).map_err(no_socket)?;
    if name.family() != Some(AddressFamily::Unix) {
        return Err(no_socket(nix::Error::ENOTSOCK));
    }
    // SAFETY: the descriptor is open (getsockname answered) and was inherited, so no object of
    // this process owns it; IS_TAKEN keeps a second call from owning it too. `main` calls this
    // before it opens anything.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    fcntl(&owned, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(no_socket)?;
    Ok(UnixStream::from(owned))
}

/// Offers this process to the out-of-memory killer before its supervisor. Best effort: without
/// `/proc` the supervisor merely loses that advantage.
pub fn volunteer_for_oom() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
}

/// Names the process for `ps` and `top`. Best effort.
pub fn name_process() {
    let _ = nix::sys::prctl::set_name(c"strata-worker");
}
