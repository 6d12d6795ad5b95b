//! What the tests of several operations share.

#![allow(dead_code, reason = "no test uses all of it")]

use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;

/// Xorshift: numbers for operands, the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number in [-0.5, 0.5).
    pub(crate) fn centred(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32 - 0.5
    }

    /// Numbers in [-bound, bound).
    pub(crate) fn values(&mut self, n: usize, bound: f32) -> Vec<f32> {
        (0..n).map(|_| self.centred() * 2.0 * bound).collect()
    }
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// What `run` gives, after checking that it gives the same bits at every level and with one thread
/// or three.
pub(crate) fn same_everywhere(run: impl Fn(&Pool, Isa) -> Vec<f32>) -> Vec<f32> {
    let expected = run(&Pool::new(1), Isa::PORTABLE);
    for n_threads in [1, 3] {
        let pool = Pool::new(n_threads);
        for isa in Isa::available() {
            let actual = run(&pool, isa);
            let is_same = bits(&actual) == bits(&expected);
            assert!(is_same, "{n_threads} threads, {}", isa.name());
        }
    }
    expected
}

/// Whether every element is within `relative` of the reference's, or within `absolute`.
#[track_caller]
pub(crate) fn assert_near(actual: &[f32], expected: &[f32], relative: f32, absolute: f32) {
    assert_eq!(actual.len(), expected.len());
    for (index, (y, expected)) in actual.iter().zip(expected).enumerate() {
        let is_near = (y - expected).abs() <= (relative * expected.abs()).max(absolute);
        assert!(is_near, "element {index}: {y}, not {expected}");
    }
}
