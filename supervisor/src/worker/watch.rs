//! Hang detection: a worker that owes something must show progress. Pure.
//!
//! The deadline counts from the last progress, or from when the worker began to owe if that is
//! later. A session's `Progress`, `Tokens` and `Ended` and an answered `Ping` are progress;
//! elapsed time alone is never a fault. A worker reads prompts one after the other, so progress
//! of any session counts for all.
//!
//! If the supervisor itself did not run (suspended, stopped, starved), the worker's messages may
//! lie unread. So a deadline that is noticed late is given once more instead of acted on.

use std::time::{Duration, Instant};

/// How much later than the deadline a look at it may come and still be trusted.
const LATE: Duration = Duration::from_millis(500);

/// The watch over one worker life.
#[derive(Debug, Clone)]
pub struct Watch {
    deadline: Duration,
    last: Option<Instant>,
}

impl Watch {
    /// A watch over a worker that owes nothing yet.
    #[must_use]
    pub fn new(deadline: Duration) -> Self {
        Self { deadline, last: None }
    }

    /// Says whether the worker owes something from now on.
    pub fn set_owing(&mut self, is_owing: bool, now: Instant) {
        match (is_owing, self.last) {
            (true, None) => self.last = Some(now),
            (false, Some(_)) => self.last = None,
            _ => {}
        }
    }

    /// The worker made progress.
    pub fn progressed(&mut self, now: Instant) {
        if let Some(last) = &mut self.last {
            *last = now;
        }
    }

    /// When to look again.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.last.map(|last| last + self.deadline)
    }

    /// Whether the worker hangs.
    pub fn is_hung(&mut self, now: Instant) -> bool {
        let Some(due) = self.due().filter(|due| now >= *due) else { return false };
        if now > due + LATE {
            self.last = Some(now);
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Watch;
    use std::time::{Duration, Instant};

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn only_a_debtor_without_progress_hangs() {
        let start = Instant::now();
        let mut watch = Watch::new(seconds(30));
        assert!(!watch.is_hung(start + seconds(30)), "owes nothing");
        watch.set_owing(true, start);
        watch.set_owing(true, start + seconds(20));
        assert_eq!(watch.due(), Some(start + seconds(30)), "owing more does not reset the clock");
        watch.progressed(start + seconds(29));
        assert!(!watch.is_hung(start + seconds(58)));
        assert!(watch.is_hung(start + seconds(59)));
        watch.set_owing(false, start + seconds(59));
        assert!(!watch.is_hung(start + seconds(60)));
    }

    #[test]
    fn a_supervisor_that_slept_gives_the_deadline_once_more() {
        let start = Instant::now();
        let mut watch = Watch::new(seconds(30));
        watch.set_owing(true, start);
        assert!(!watch.is_hung(start + seconds(3000)));
        assert!(watch.is_hung(start + seconds(3030)));
    }
}
