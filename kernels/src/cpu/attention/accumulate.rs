//! The loop in which attention spends its time: tiles of sums that stay in registers.

use crate::cpu::lanes::{Chunk, LANES, Lanes};

/// Vectors of sixteen elements of keys or values, as f16 bits or as f32.
pub(super) trait Vectors: Copy {
    /// How many there are.
    fn count(self) -> usize;

    /// The vector at `index`, as f32.
    ///
    /// # Safety
    ///
    /// `index` is below `count()`.
    unsafe fn load<L: Lanes>(self, lanes: L, index: usize) -> L::Float;
}

impl Vectors for &[[u16; LANES]] {
    #[inline(always)]
    fn count(self) -> usize {
        self.len()
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(self, lanes: L, index: usize) -> L::Float {
        // SAFETY: the caller's promise.
        lanes.load_half(unsafe { self.get_unchecked(index) })
    }
}

impl Vectors for &[Chunk] {
    #[inline(always)]
    fn count(self) -> usize {
        self.len()
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(self, lanes: L, index: usize) -> L::Float {
        // SAFETY: the caller's promise.
        lanes.load(unsafe { &self.get_unchecked(index).0 })
    }
}

/// Where [`accumulate`] finds its vectors: tile `t` of step `k` is at
/// `start + k * step + t * tile`.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    pub(super) start: usize,
    pub(super) step: usize,
    pub(super) tile: usize,
    pub(super) n: usize,
}

/// `sums[r][t] += factors[r][k] * vectors[k, t]`, fused, for `k` in `0..n` in order.
#[inline(always)]
pub(super) fn accumulate<L: Lanes, S: Vectors, const R: usize, const T: usize>(
    lanes: L,
    factors: [&[f32]; R],
    vectors: S,
    walk: Walk,
    mut sums: [[L::Float; T]; R],
) -> [[L::Float; T]; R] {
    let Walk { start, step, tile, n } = walk;
    for factors in factors {
        assert!(n <= factors.len(), "a factor for each step");
    }
    let reach = start + n.saturating_sub(1) * step + (T - 1) * tile;
    assert!(n == 0 || reach < vectors.count(), "a vector for each step");
    for k in 0..n {
        let mut tiles = [lanes.splat(0.0); T];
        for (t, vector) in tiles.iter_mut().enumerate() {
            // SAFETY: at most `reach`, which is below the count.
            *vector = unsafe { vectors.load(lanes, start + k * step + t * tile) };
        }
        for r in 0..R {
            // SAFETY: `k < n`, and `n` is at most the length.
            let factor = lanes.splat(unsafe { *factors[r].get_unchecked(k) });
            for t in 0..T {
                sums[r][t] = lanes.fma(factor, tiles[t], sums[r][t]);
            }
        }
    }
    sums
}
