//! Hang detection: a worker that owes something must show progress. Pure.
//!
//! The deadline counts from the last progress, or from when the worker began to owe if that is
//! later. A session's `Progress`, `Tokens` and `Ended` and an answered `Ping` are progress;
//! elapsed time alone is never a fault. A worker reads prompts one after the other, so progress
//! of any session counts for all.
//!
//! If the supervisor itself did not run (suspended, stopped, starved), the worker's messages may
//! lie unread. So a deadline that is noticed late is given once more instead of acted on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use shared::ids::SessionId;

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

/// The watch over each sequence of a worker life that is owed something by every pass: a token, or
/// its end. One that gets nothing while others go on was forgotten.
///
/// A sequence is forgotten when, since it last got something, the deadline has passed *and* the
/// others took more steps than two passes can give. So neither a slow pass nor a slow worker is a
/// fault, and a worker that gives nothing to anybody is [`Watch`]'s. Sequences that wait for their
/// turn to read a prompt are not watched.
#[derive(Debug, Clone)]
pub struct Shares {
    deadline: Duration,
    /// More steps than two passes can give.
    steps_min: u64,
    steps: u64,
    owed: BTreeMap<SessionId, Share>,
    /// When to look again.
    due: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Share {
    last: Instant,
    steps: u64,
}

impl Shares {
    /// Nothing is owed yet by a worker of so many slots.
    #[must_use]
    pub fn new(deadline: Duration, slots: u32) -> Self {
        // A pass gives each slot at most a step of reading and one of writing.
        let steps_min = 4 * u64::from(slots);
        Self { deadline, steps_min, steps: 0, owed: BTreeMap::new(), due: None }
    }

    /// Some sequence read on.
    pub fn stepped(&mut self) {
        self.steps += 1;
    }

    /// The sequence got something, and is owed more from now on.
    pub fn served(&mut self, session: SessionId, now: Instant) {
        self.stepped();
        self.owe(session, now);
    }

    /// The sequence is owed something from now on: it was told to end.
    pub fn owe(&mut self, session: SessionId, now: Instant) {
        self.owed.insert(session, Share { last: now, steps: self.steps });
        self.due.get_or_insert(now + self.deadline);
    }

    /// The sequence has left the worker.
    pub fn left(&mut self, session: SessionId) {
        self.owed.remove(&session);
        if self.owed.is_empty() {
            self.due = None;
        }
    }

    /// When to look again.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A sequence that was forgotten, if it is time to look for one.
    pub fn forgotten(&mut self, now: Instant) -> Option<SessionId> {
        let due = self.due.filter(|due| now >= *due)?;
        self.due = Some(now + self.deadline / 4);
        if now > due + LATE {
            // What the worker said may lie unread.
            self.owed.values_mut().for_each(|share| share.last = now);
            return None;
        }
        let is_forgotten = |share: &Share| {
            now >= share.last + self.deadline && self.steps - share.steps > self.steps_min
        };
        self.owed.iter().find(|(_, share)| is_forgotten(share)).map(|(session, _)| *session)
    }
}

#[cfg(test)]
mod tests {
    use super::{Shares, Watch};
    use shared::ids::SessionId;
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

    /// Session 1 gets its last token at the start; session 2 gets `steps` by the deadline.
    fn forgotten_after(steps: u64, looked_at: u64) -> Option<SessionId> {
        let start = Instant::now();
        let mut shares = Shares::new(seconds(30), 4);
        shares.served(SessionId(1), start);
        for step in 1..=steps {
            shares.served(SessionId(2), start + seconds(29 * step / steps));
        }
        assert_eq!(shares.forgotten(start + seconds(29)), None, "too early");
        shares.forgotten(start + seconds(looked_at))
    }

    #[test]
    fn a_sequence_that_gets_nothing_while_others_go_on_was_forgotten() {
        assert_eq!(forgotten_after(17, 30), Some(SessionId(1)));
        assert_eq!(forgotten_after(16, 30), None, "the passes are slow");
        assert_eq!(forgotten_after(100, 31), None, "the supervisor slept");
    }

    #[test]
    fn one_that_is_served_or_has_left_is_not_forgotten() {
        let start = Instant::now();
        let mut shares = Shares::new(seconds(30), 1);
        for second in 0..600 {
            shares.served(SessionId(1), start + seconds(second));
            shares.stepped();
            assert_eq!(shares.forgotten(start + seconds(second)), None);
        }
        shares.left(SessionId(1));
        assert_eq!(shares.due(), None);
    }
}
