//! What the tests of several operations share.

#![allow(dead_code, reason = "no test uses all of it")]

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
