//! Which sessions go to the worker next. Pure.
//!
//! Sessions go in the order they came, those that were computed before first. A session is a
//! *suspect* once [`SUSPECT_STRIKES`] workers died while it was active and had no new token: it
//! is tried alone, after the others, so that it can neither take them down with it again nor be
//! blamed for them. A token clears it; [`shared::limits::STRIKES_MAX`] strikes convict it.
//! While a suspect waits, no session that was never submitted is started, so that a busy service
//! cannot put the trial off for ever.

use shared::ids::SessionId;

/// Strikes that make a suspect.
pub const SUSPECT_STRIKES: u32 = 2;

/// A session, as the plan sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The session.
    pub session: SessionId,
    /// Submissions so far.
    pub attempts: u32,
    /// Worker deaths it may have caused.
    pub strikes: u32,
}

impl Candidate {
    fn is_suspect(&self) -> bool {
        self.strikes >= SUSPECT_STRIKES
    }
}

/// The sessions to submit now, in order. `running` are those that occupy one of `slots`.
#[must_use]
pub fn plan(waiting: &[Candidate], running: &[Candidate], slots: usize) -> Vec<SessionId> {
    if running.iter().any(Candidate::is_suspect) {
        return Vec::new();
    }
    let a_suspect_waits = waiting.iter().any(Candidate::is_suspect);
    let mut ready: Vec<&Candidate> = waiting
        .iter()
        .filter(|one| !one.is_suspect() && (one.attempts > 0 || !a_suspect_waits))
        .collect();
    ready.sort_by_key(|one| (one.attempts == 0, one.session));
    let free = slots.saturating_sub(running.len());
    let mut planned: Vec<SessionId> = ready.iter().take(free).map(|one| one.session).collect();
    if planned.is_empty() && running.is_empty() {
        let suspect = waiting
            .iter()
            .filter(|one| one.is_suspect())
            .min_by_key(|one| (one.strikes, one.session));
        planned.extend(suspect.map(|one| one.session));
    }
    planned
}

#[cfg(test)]
mod tests {
    use super::{Candidate, plan};
    use shared::ids::SessionId;

    fn one(session: u64, attempts: u32, strikes: u32) -> Candidate {
        Candidate { session: SessionId(session), attempts, strikes }
    }

    fn ids(waiting: &[Candidate], running: &[Candidate], slots: usize) -> Vec<u64> {
        plan(waiting, running, slots).into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn order_of_arrival_but_replays_first_up_to_the_slots() {
        let waiting = [one(1, 0, 0), one(2, 0, 0), one(3, 1, 0), one(4, 1, 1)];
        assert_eq!(ids(&waiting, &[], 3), [3, 4, 1]);
        assert_eq!(ids(&waiting, &[one(9, 1, 0)], 3), [3, 4]);
        assert_eq!(ids(&waiting, &[one(9, 1, 0)], 1), [] as [u64; 0]);
        assert_eq!(ids(&[], &[], 4), [] as [u64; 0]);
    }

    #[test]
    fn suspects_run_alone_and_last() {
        let waiting = [one(1, 2, 2), one(2, 2, 2), one(3, 2, 1), one(4, 0, 0)];
        assert_eq!(ids(&waiting, &[], 4), [3], "the innocent replay first, the new one waits");
        let waiting = [one(1, 3, 3), one(2, 2, 2), one(4, 0, 0)];
        assert_eq!(ids(&waiting, &[one(3, 3, 0)], 4), [] as [u64; 0], "not beside another");
        assert_eq!(ids(&waiting, &[], 4), [2], "the less suspect first");
        assert_eq!(ids(&waiting, &[one(2, 3, 2)], 4), [] as [u64; 0], "nobody beside a suspect");
    }

    #[test]
    fn a_cleared_suspect_lets_the_others_in() {
        let waiting = [one(4, 0, 0), one(5, 0, 0)];
        assert_eq!(ids(&waiting, &[one(1, 3, 0)], 4), [4, 5]);
    }
}
