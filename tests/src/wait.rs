//! Waiting for a condition, the only way a test here waits.

use std::time::{Duration, Instant};

/// Between two looks: short against every deadline, long against the cost of a look.
const INTERVAL: Duration = Duration::from_millis(10);

/// Looks at `condition` until it gives a value.
///
/// # Panics
///
/// Once the deadline has passed; `what` says what was waited for.
#[track_caller]
pub fn wait_for<T>(what: &str, deadline: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + deadline;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < until, "waited {deadline:?} in vain for {what}");
        std::thread::sleep(INTERVAL);
    }
}

/// Looks at `claim` until it is true.
///
/// # Panics
///
/// As [`wait_for`].
#[track_caller]
pub fn wait_until(what: &str, deadline: Duration, mut claim: impl FnMut() -> bool) {
    wait_for(what, deadline, || claim().then_some(()));
}
