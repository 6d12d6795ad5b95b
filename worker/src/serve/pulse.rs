//! The link as seen from inside the computing thread: what is done between two layers.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use shared::fault::WorkerExit;
use shared::ids::SessionId;
use shared::protocol::{FromWorker, ToWorker};

use super::Fate;
use super::link::Link;
use super::scheduler::Item;
use crate::epitaph;

/// Least time between two looks at the link within a pass: a system call per layer would cost a
/// small model more than it is worth.
const BEAT_EVERY: Duration = Duration::from_millis(1);

/// Least time between two `Progress` frames of one pass.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// Least time between two `Loading` frames.
const LOADING_EVERY: Duration = Duration::from_millis(100);

/// Messages that may wait for the end of a pass. More stay in the socket.
const INBOX_MAX: usize = 1024;

/// The link, and what has arrived on it while something else was being done.
#[derive(Debug)]
pub(super) struct Pulse {
    pub(super) link: Link,
    pub(super) inbox: VecDeque<ToWorker>,
    /// Why the pass under way was broken off, if it was the link's doing.
    fate: Option<Fate>,
    last_beat: Instant,
    last_progress: Instant,
    loaded_bytes: Option<u64>,
}

impl Pulse {
    pub(super) fn new(link: Link) -> Self {
        let now = Instant::now();
        Self {
            link,
            inbox: VecDeque::new(),
            fate: None,
            last_beat: now,
            last_progress: now,
            loaded_bytes: None,
        }
    }

    /// Sends what can leave and takes in what has arrived. Answers each `Ping` at once.
    pub(super) fn listen(&mut self) -> Result<(), Fate> {
        self.last_beat = Instant::now();
        self.link.flush()?;
        while self.inbox.len() < INBOX_MAX {
            match self.link.receive()? {
                None => break,
                Some(ToWorker::Ping(number)) => self.link.queue(FromWorker::Pong(number)),
                Some(ToWorker::Leave) => {
                    return Err(Fate::new(WorkerExit::Clean, "told to leave"));
                }
                Some(message) => self.inbox.push_back(message),
            }
        }
        self.link.flush()?;
        Ok(())
    }

    /// Blocks until the supervisor speaks or reads.
    pub(super) fn wait(&mut self) -> Result<(), Fate> {
        self.link.flush()?;
        self.link.wait()?;
        Ok(())
    }

    /// Looks at the link if that is due. Breaks if this life is over; [`Pulse::take_fate`] says
    /// why.
    pub(super) fn beat(&mut self) -> ControlFlow<()> {
        if self.last_beat.elapsed() < BEAT_EVERY {
            return ControlFlow::Continue(());
        }
        match self.listen() {
            Ok(()) => ControlFlow::Continue(()),
            Err(fate) => {
                self.fate = Some(fate);
                ControlFlow::Break(())
            }
        }
    }

    /// The fate that broke the last pass.
    pub(super) fn take_fate(&mut self) -> Result<(), Fate> {
        self.fate.take().map_or(Ok(()), Err)
    }

    /// A pass begins: its first `Progress` is due a full interval from now.
    pub(super) fn begin_pass(&mut self) {
        self.last_progress = Instant::now();
    }

    /// Between two layers of a pass: beats, breaks if nobody wants the result any more, and says
    /// that prefill goes on.
    pub(super) fn beat_within(&mut self, plan: &[Item]) -> ControlFlow<()> {
        self.beat()?;
        if plan.iter().all(|item| self.is_told_to_end(item.session)) {
            return ControlFlow::Break(());
        }
        if self.last_progress.elapsed() >= PROGRESS_EVERY {
            self.last_progress = Instant::now();
            for item in plan.iter().filter(|item| item.is_prefill()) {
                let (session, position) = (item.session, item.start);
                self.link.queue_unless_busy(FromWorker::Progress { session, position });
                if let Err(fault) = self.link.flush() {
                    self.fate = Some(fault.into());
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn is_told_to_end(&self, id: SessionId) -> bool {
        let tells =
            |message: &ToWorker| matches!(message, ToWorker::End { session, .. } if *session == id);
        self.inbox.iter().any(tells)
    }

    /// While the engine loads: says how far it is, if bytes were added, and looks at the link.
    /// Loading cannot be broken off, so if this life is over the process ends here.
    pub(super) fn loading(&mut self, done_bytes: u64, total_bytes: u64) {
        let is_first = self.loaded_bytes.is_none();
        let is_last = done_bytes == total_bytes;
        let is_due = self.last_progress.elapsed() >= LOADING_EVERY;
        if self.loaded_bytes < Some(done_bytes) && (is_first || is_last || is_due) {
            self.loaded_bytes = Some(done_bytes);
            self.last_progress = Instant::now();
            self.link.queue_unless_busy(FromWorker::Loading { done_bytes, total_bytes });
            self.last_beat = self.last_progress;
            if let Err(fault) = self.link.flush() {
                end_of_life(&fault.into());
            }
        }
        if self.beat().is_break()
            && let Some(fate) = self.fate.take()
        {
            end_of_life(&fate);
        }
    }
}

fn end_of_life(fate: &Fate) -> ! {
    epitaph::leave(fate.exit, format_args!("{} while=loading", fate.detail))
}
