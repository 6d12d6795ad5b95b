//! Repeatable randomness for tests: the seed is printed first, and `STRATA_SEED` sets it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Sets the seed of every random test.
pub const SEED_VARIABLE: &str = "STRATA_SEED";

/// A generator. Source: Sebastiano Vigna's splitmix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// From the environment, else from the clock; prints the seed.
    ///
    /// # Panics
    ///
    /// If `STRATA_SEED` is no number.
    #[must_use]
    pub fn announced(what: &str) -> Self {
        let seed = match std::env::var(SEED_VARIABLE) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE} is no number")),
            Err(_) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::from(now.subsec_nanos()) ^ (now.as_secs() << 20)
            }
        };
        eprintln!("{what}: {SEED_VARIABLE}={seed}");
        Self(seed)
    }

    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..end`.
    ///
    /// # Panics
    ///
    /// If `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("usize is 64 bits here");
        usize::try_from(self.bits() % end).expect("below a usize")
    }

    /// One of them.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
