//! The crash budget: how long to wait before the next start, and when to call it degraded. Pure.
//!
//! Two counters. *Barren* failures are those in a row in whose life no token was served; they
//! lengthen the wait and, at `failures_max`, make the service degraded. *Strain* counts all
//! failures that were not forgiven; past [`STRAIN_MAX`] even fruitful lives wait a little, so
//! that no sequence of failures becomes a tight loop. Good service forgives one failure per
//! `forgive_after`.

use std::time::Duration;

use shared::config::Config;

/// Unforgiven failures after which each restart waits at least `restart_delay`.
pub const STRAIN_MAX: u32 = 32;

/// Shortest wait after a second barren failure, whatever is configured.
pub const DELAY_MIN: Duration = Duration::from_millis(100);

/// What bounds the budget; from the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Wait before the second start in a row that failed.
    pub delay: Duration,
    /// Longest wait.
    pub delay_max: Duration,
    /// Barren failures in a row that make the service degraded.
    pub failures_max: u32,
    /// Service that forgives one failure.
    pub forgive_after: Duration,
}

impl From<&Config> for Limits {
    fn from(config: &Config) -> Self {
        Self {
            delay: Duration::from_secs_f64(config.restart_delay_s),
            delay_max: Duration::from_secs_f64(config.restart_delay_max_s),
            failures_max: config.failures_max,
            forgive_after: Duration::from_secs_f64(config.forgive_after_s),
        }
    }
}

/// The state of the budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    limits: Limits,
    barren: u32,
    strain: u32,
}

impl Budget {
    /// A budget without failures.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, barren: 0, strain: 0 }
    }

    /// A token was served: starts work.
    pub fn proved(&mut self) {
        self.barren = 0;
    }

    /// The last failures were the fault of one request, which is now gone.
    pub fn explained(&mut self) {
        self.barren = 0;
    }

    /// A life failed after serving for `served`. Returns how long to wait for the next start.
    pub fn failed(&mut self, served: Duration) -> Duration {
        let forgiven = self.forgiven(served);
        self.barren = self.barren.saturating_sub(forgiven).saturating_add(1);
        self.strain = self.strain.saturating_sub(forgiven).saturating_add(1);
        let mut delay = match self.barren {
            0 | 1 => Duration::ZERO,
            _ if self.is_degraded() => self.limits.delay_max.max(DELAY_MIN),
            barren => self
                .limits
                .delay
                .saturating_mul(1 << (barren - 2).min(30))
                .min(self.limits.delay_max)
                .max(DELAY_MIN),
        };
        if self.strain > STRAIN_MAX {
            delay = delay.max(self.limits.delay).max(DELAY_MIN);
        }
        delay
    }

    /// Whether so many starts failed that requests are refused.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.barren >= self.limits.failures_max
    }

    /// Failures in a row without a token served.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.barren
    }

    fn forgiven(&self, served: Duration) -> u32 {
        if served.is_zero() {
            return 0;
        }
        let times = served.as_secs_f64() / self.limits.forgive_after.as_secs_f64().max(1e-9);
        // A saturating conversion: every count above `u32::MAX` forgives all there is.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let times = times as u32;
        times
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, DELAY_MIN, Limits, STRAIN_MAX};
    use std::time::Duration;

    fn budget() -> Budget {
        Budget::new(Limits {
            delay: Duration::from_millis(500),
            delay_max: Duration::from_secs(4),
            failures_max: 6,
            forgive_after: Duration::from_secs(60),
        })
    }

    const NOT: Duration = Duration::ZERO;

    #[test]
    fn barren_failures_wait_longer_and_longer_up_to_degraded() {
        let mut budget = budget();
        let waits: Vec<u128> = (0..7).map(|_| budget.failed(NOT).as_millis()).collect();
        assert_eq!(waits, [0, 500, 1000, 2000, 4000, 4000, 4000]);
        assert!(budget.is_degraded());
        budget.proved();
        assert!(!budget.is_degraded());
        assert_eq!(budget.failed(NOT), NOT);
    }

    #[test]
    fn good_service_forgives_one_failure_per_interval() {
        let mut budget = budget();
        for _ in 0..4 {
            budget.failed(NOT);
        }
        budget.failed(Duration::from_secs(130));
        assert_eq!(budget.failures(), 3);
    }

    #[test]
    fn fruitful_lives_that_keep_dying_are_slowed_too() {
        let mut budget = budget();
        for _ in 0..STRAIN_MAX {
            assert_eq!(budget.failed(NOT), NOT);
            budget.proved();
        }
        assert_eq!(budget.failed(NOT), Duration::from_millis(500));
    }

    #[test]
    fn no_configuration_makes_a_tight_loop() {
        let mut budget = Budget::new(Limits {
            delay: NOT,
            delay_max: NOT,
            failures_max: 1000,
            forgive_after: NOT,
        });
        budget.failed(NOT);
        for _ in 0..2000 {
            assert!(budget.failed(NOT) >= DELAY_MIN);
        }
    }
}
