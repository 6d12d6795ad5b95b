//! One worker process as the event loop holds it.

use std::time::Duration;

use shared::ids::Incarnation;
use shared::protocol::ToWorker;
use tokio::time::Instant;

use crate::worker::exit::Exit;
use crate::worker::link::{Link, Unsendable};
use crate::worker::process::Kill;
use crate::worker::watch::{Shares, Watch};

use shared::fault::NonFinite;

/// How long one sign of a worker's end waits for the other: the process is reaped, the link is
/// closed and read to its end.
pub(super) const END_GRACE: Duration = Duration::from_secs(1);

/// From the order to spawn to the end that was reported and read.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) incarnation: Incarnation,
    pub(super) started: Instant,
    pub(super) link: Option<Link>,
    pub(super) handle: Option<Box<dyn Kill>>,
    /// Sessions and pings it owes answers to.
    pub(super) watch: Watch,
    /// What it owes to each session.
    pub(super) shares: Shares,
    /// The ping under way.
    pub(super) ping: Option<u64>,
    pub(super) pings: u64,
    pub(super) ping_due: Instant,
    /// Its report of a non-finite value.
    pub(super) nonfinite: Option<NonFinite>,
    /// How the process ended.
    pub(super) exit: Option<(Exit, String)>,
    /// Nothing comes from the link any more.
    pub(super) is_link_closed: bool,
    /// When one sign of the end has waited long enough for the other.
    pub(super) end_due: Option<Instant>,
    is_kill_ordered: bool,
}

impl Life {
    pub(super) fn new(
        incarnation: Incarnation,
        progress_deadline: Duration,
        slots: u32,
        now: Instant,
    ) -> Self {
        Self {
            incarnation,
            started: now,
            link: None,
            handle: None,
            watch: Watch::new(progress_deadline),
            shares: Shares::new(progress_deadline, slots),
            ping: None,
            pings: 0,
            ping_due: now,
            nonfinite: None,
            exit: None,
            is_link_closed: false,
            end_due: None,
            is_kill_ordered: false,
        }
    }

    /// Kills the process, now or as soon as it is known.
    pub(super) fn kill(&mut self) {
        self.is_kill_ordered = true;
        if let Some(handle) = &self.handle {
            handle.kill();
        }
    }

    /// The process is known now.
    pub(super) fn launched(&mut self, handle: Box<dyn Kill>) {
        if self.is_kill_ordered {
            handle.kill();
        }
        self.handle = Some(handle);
    }

    /// Whether a sign of the end was seen, and the other is awaited.
    pub(super) fn is_ending(&self) -> bool {
        self.exit.is_some() || self.is_link_closed || self.end_due.is_some()
    }

    /// Puts a message into the outbox.
    pub(super) fn send(&self, message: ToWorker) -> Result<(), Unsendable> {
        self.link.as_ref().ok_or(Unsendable::Closed)?.send(message)
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.handle.as_ref().and_then(|handle| handle.pid())
    }
}
