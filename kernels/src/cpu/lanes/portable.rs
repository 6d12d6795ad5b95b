//! Sixteen lanes as an array, in plain Rust.

use half::f16;

use super::{LANES, Lanes};

/// The level every machine has. `f32::mul_add` is one instruction on AArch64, and a slow but equal
/// library call on an x86 without FMA.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portable;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], op: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut out = a;
    for (x, y) in out.iter_mut().zip(b) {
        *x = op(*x, y);
    }
    out
}

#[inline(always)]
fn fold(mut v: [f32; LANES], op: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            v[lane] = op(v[lane], v[lane + half]);
        }
    }
    v[0]
}

#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// `2^n` for `n` in -126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    #[expect(clippy::cast_sign_loss, reason = "a biased exponent, then its bits")]
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

impl Lanes for Portable {
    type V = [f32; LANES];

    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        *from
    }

    #[inline(always)]
    fn load_half(self, from: &[u16; LANES]) -> Self::V {
        from.map(|bits| f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        *to = v;
    }

    #[inline(always)]
    fn store_half(self, v: Self::V, to: &mut [u16; LANES]) {
        *to = v.map(|x| f16::from_f32(x).to_bits());
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| x + y)
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| x - y)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| x * y)
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| x / y)
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        let mut out = c;
        for lane in 0..LANES {
            out[lane] = a[lane].mul_add(b[lane], c[lane]);
        }
        out
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, greater)
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |x, y| if x < y { x } else { y })
    }

    #[inline(always)]
    fn round(self, v: Self::V) -> Self::V {
        v.map(f32::round_ties_even)
    }

    #[inline(always)]
    fn scale(self, v: Self::V, n: Self::V) -> Self::V {
        // In two steps: 2^n itself may not be a normal number. The first is exact.
        zip(v, n, |x, n| {
            #[expect(clippy::cast_possible_truncation, reason = "integral and small")]
            let n = n as i32;
            let first = n >> 1;
            x * power_of_two(first) * power_of_two(n - first)
        })
    }

    #[inline(always)]
    fn swap_pairs(self, mut v: Self::V) -> Self::V {
        for pair in v.as_chunks_mut::<2>().0 {
            pair.swap(0, 1);
        }
        v
    }

    #[inline(always)]
    fn keep_first(self, v: Self::V, n: usize, fill: Self::V) -> Self::V {
        let mut out = fill;
        out[..n].copy_from_slice(&v[..n]);
        out
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        fold(v, |x, y| x + y)
    }

    #[inline(always)]
    fn greatest(self, v: Self::V) -> f32 {
        fold(v, greater)
    }
}
