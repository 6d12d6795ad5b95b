//! The journal: tracing to stderr, where systemd picks it up.
//!
//! One event per change of state, one per request at its end; nothing per token. Field names that
//! begin with `strata_` are stable: scripts may rely on them. What a worker can cause at will is
//! rate-limited with counts.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;

mod sink;

/// Whether `filter` can be parsed.
///
/// # Errors
///
/// What is wrong with it.
pub fn check(filter: &str) -> Result<(), String> {
    EnvFilter::try_new(filter).map(drop).map_err(|error| error.to_string())
}

/// Sends events to stderr, as far as `filter` lets them pass and somebody takes them. To be called
/// once, at the start.
///
/// # Errors
///
/// The filter cannot be parsed, or a subscriber was installed before; in words.
pub fn init(filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| format!("`log` is no tracing filter: {error}"))?;
    let is_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(sink::Sink::new(std::io::stderr()))
        // It would tell of a write that failed through `eprintln!`, which panics.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    // The journal has its own time.
    let result = if is_journal { builder.without_time().try_init() } else { builder.try_init() };
    result.map_err(|error| format!("installing the journal: {error}"))
}

/// Lines that may pass at once, and then how many a second.
const BURST: u32 = 100;
const PER_SECOND: f64 = 20.0;

/// Lets a burst pass, then a steady rate, and counts what it withheld.
#[derive(Debug)]
pub struct RateLimit {
    allowance: f64,
    last: Option<Instant>,
    suppressed: u64,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self { allowance: f64::from(BURST), last: None, suppressed: 0 }
    }
}

impl RateLimit {
    /// Whether a line may pass; if so, how many were withheld before it.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        let passed = self.last.map_or(Duration::ZERO, |last| now.duration_since(last));
        self.last = Some(now);
        self.allowance = (self.allowance + passed.as_secs_f64() * PER_SECOND).min(f64::from(BURST));
        if self.allowance < 1.0 {
            self.suppressed += 1;
            return None;
        }
        self.allowance -= 1.0;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::{BURST, RateLimit};
    use std::time::{Duration, Instant};

    #[test]
    fn a_flood_is_withheld_and_counted() {
        let start = Instant::now();
        let mut limit = RateLimit::default();
        let passed = (0..1000).filter(|_| limit.admit(start).is_some()).count();
        assert_eq!(passed, BURST as usize);
        assert_eq!(limit.admit(start + Duration::from_secs(1)), Some(900));
    }
}
