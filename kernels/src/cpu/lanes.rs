//! Sixteen `f32` lanes: the one vector shape in which every operation here is written once.
//!
//! A 512-bit register, two 256-bit ones, or an array of sixteen: each level computes the same
//! operations in the same order with the same rounding (`fma` is fused everywhere), so all levels
//! give equal bits. Which of them runs is decided once per call by [`dispatch`].
//!
//! A value of a type that implements [`Lanes`] is proof that its instructions exist: it is made
//! only in [`dispatch`], from an [`Isa`]. So its methods are safe.

use crate::isa::{Isa, Level};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Sixteen floats in memory, on a cache line of their own.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Chunk(pub(crate) [f32; LANES]);

impl Chunk {
    /// All zero.
    pub(crate) const ZERO: Self = Self([0.0; LANES]);
}

/// Operations on sixteen lanes. Unless said otherwise each lane is computed by itself.
pub(crate) trait Lanes: Copy {
    /// Sixteen `f32`.
    type V: Copy;

    /// Whether there are 32 vector registers of 16 lanes, so that large tiles stay in them.
    const WIDE: bool;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// From memory.
    fn load(self, from: &[f32; LANES]) -> Self::V;
    /// From memory, converted from f16 bits. Exact.
    fn load_half(self, from: &[u16; LANES]) -> Self::V;
    /// To memory.
    fn store(self, v: Self::V, to: &mut [f32; LANES]);
    /// To memory, rounded to f16 bits (to nearest, ties to even; too large becomes infinite).
    fn store_half(self, v: Self::V, to: &mut [u16; LANES]);
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a` if `a > b`, else `b`: `b` also where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a` if `a < b`, else `b`: `b` also where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    fn round(self, v: Self::V) -> Self::V;
    /// `v * 2^n` for integral `n` in -160..=160, rounded once.
    fn scale(self, v: Self::V, n: Self::V) -> Self::V;
    /// Exchanges lanes 0 and 1, 2 and 3, and so on.
    fn swap_pairs(self, v: Self::V) -> Self::V;
    /// The first `n` lanes of `v`, and `fill` in the others.
    fn keep_first(self, v: Self::V, n: usize, fill: Self::V) -> Self::V;
    /// The sum of all lanes: lane `i` with `i + 8`, then with `i + 4`, `i + 2`, `i + 1`.
    fn sum(self, v: Self::V) -> f32;
    /// The greatest lane, folded like [`sum`](Self::sum) with [`max`](Self::max).
    fn greatest(self, v: Self::V) -> f32;

    /// From up to sixteen elements; the other lanes are `fill`.
    #[inline(always)]
    fn load_part(self, from: &[f32], fill: f32) -> Self::V {
        let mut whole = [fill; LANES];
        whole[..from.len()].copy_from_slice(from);
        self.load(&whole)
    }

    /// The first lanes to up to sixteen elements.
    #[inline(always)]
    fn store_part(self, v: Self::V, to: &mut [f32]) {
        let mut whole = [0.0; LANES];
        self.store(v, &mut whole);
        to.copy_from_slice(&whole[..to.len()]);
    }
}

/// Work written for any [`Lanes`].
pub(crate) trait Vectorised {
    /// What it gives back.
    type Output;

    /// Does it. Implementations are `#[inline(always)]`, and so is all they call with `lanes`:
    /// only then are they compiled for the level's instructions.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Runs `work` with the instructions that `isa` proves.
#[inline]
pub(crate) fn dispatch<W: Vectorised>(isa: Isa, work: W) -> W::Output {
    match isa.level() {
        Level::Portable => work.run(portable::Portable),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` proves AVX2, FMA and F16C.
        Level::Avx2 => unsafe { avx2::run(work) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` proves AVX-512 F, BW, DQ and VL, and all of AVX2's level.
        Level::Avx512 => unsafe { avx512::run(work) },
        #[cfg(not(target_arch = "x86_64"))]
        Level::Avx2 | Level::Avx512 => unreachable!("no Isa of this level exists here"),
    }
}

#[cfg(test)]
mod tests {
    use super::{LANES, Lanes, Vectorised, dispatch};
    use crate::isa::Isa;

    /// Every operation on the same operands; results as bits.
    #[derive(Clone, Copy)]
    struct Everything<'a>(&'a [f32; LANES], &'a [f32; LANES], &'a [f32; LANES]);

    impl Vectorised for Everything<'_> {
        type Output = Vec<u32>;

        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) -> Vec<u32> {
            let (a, b, c) = (lanes.load(self.0), lanes.load(self.1), lanes.load(self.2));
            let mut bits = vec![lanes.sum(a).to_bits(), lanes.greatest(a).to_bits()];
            let mut halves = [0; LANES];
            lanes.store_half(a, &mut halves);
            let n = lanes.round(lanes.max(lanes.min(b, lanes.splat(150.0)), lanes.splat(-150.0)));
            for v in [
                lanes.splat(self.0[3]),
                lanes.load_half(&halves),
                lanes.add(a, b),
                lanes.sub(a, b),
                lanes.mul(a, b),
                lanes.div(a, b),
                lanes.fma(a, b, c),
                lanes.max(a, b),
                lanes.min(a, b),
                lanes.round(a),
                lanes.scale(c, n),
                lanes.swap_pairs(a),
                lanes.keep_first(a, 0, b),
                lanes.keep_first(a, 5, b),
                lanes.keep_first(a, 16, b),
            ] {
                let mut out = [0.0; LANES];
                lanes.store(v, &mut out);
                // A NaN's payload is the one thing the levels may differ in.
                bits.extend(out.map(|x: f32| if x.is_nan() { u32::MAX } else { x.to_bits() }));
            }
            bits
        }
    }

    #[test]
    fn all_levels_give_equal_bits() {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        };
        for round in 0..2000 {
            let mut operand = || {
                [(); LANES].map(|()| match (round % 3, next()) {
                    (0, bits) => f32::from_bits(bits),
                    (_, bits) => f32::from_bits(bits & 0x87ff_ffff | 0x3c00_0000) * 20.0,
                })
            };
            let (a, b, c) = (operand(), operand(), operand());
            if round % 3 == 0 && a.iter().any(|x| x.is_nan()) {
                continue;
            }
            let work = Everything(&a, &b, &c);
            let expected = dispatch(Isa::PORTABLE, work);
            for isa in Isa::available() {
                assert_eq!(dispatch(isa, work), expected, "{}: {a:?} {b:?} {c:?}", isa.name());
            }
        }
    }
}
