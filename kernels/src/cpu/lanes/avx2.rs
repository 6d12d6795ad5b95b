//! Sixteen lanes in two 256-bit registers.
//!
//! SAFETY of every block: a value of [`Avx2`] exists only inside [`run`], whose caller proves the
//! instructions; and references to arrays of sixteen are valid for the whole of each access.

use core::arch::x86_64::{
    __m128, __m128i, __m256, __m256i, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_loadu_si128,
    _mm_max_ps, _mm_max_ss, _mm_movehl_ps, _mm_shuffle_ps, _mm_storeu_si128, _mm256_add_epi32,
    _mm256_add_ps, _mm256_blendv_ps, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_cmpgt_epi32, _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_cvtps_ph, _mm256_div_ps,
    _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps,
    _mm256_mul_ps, _mm256_permute_ps, _mm256_round_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setr_epi32, _mm256_slli_epi32, _mm256_srai_epi32, _mm256_storeu_ps, _mm256_sub_epi32,
    _mm256_sub_ps,
};

use super::{LANES, Lanes, Vectorised};

/// Proof of AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2(());

/// Runs `work` compiled for AVX2.
///
/// # Safety
///
/// The caller proves AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<W: Vectorised>(work: W) -> W::Output {
    work.run(Avx2(()))
}

/// The sum of eight lanes: halves, quarters, pairs.
///
/// # Safety
///
/// The caller proves AVX2.
#[inline(always)]
pub(super) unsafe fn sum_8(v: __m256) -> f32 {
    // SAFETY: the caller's proof.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, second(two)))
    }
}

/// The greatest of eight lanes, folded like [`sum_8`].
///
/// # Safety
///
/// The caller proves AVX2.
#[inline(always)]
pub(super) unsafe fn greatest_8(v: __m256) -> f32 {
    // SAFETY: the caller's proof.
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, second(two)))
    }
}

/// Lane 1 in lane 0.
#[inline(always)]
unsafe fn second(v: __m128) -> __m128 {
    // SAFETY: SSE is part of x86-64.
    unsafe { _mm_shuffle_ps::<1>(v, v) }
}

/// `v * 2^n`, in two steps since 2^n itself may not be a normal number. The first is exact.
#[inline(always)]
unsafe fn scale_8(v: __m256, n: __m256) -> __m256 {
    // SAFETY: the caller's proof.
    unsafe {
        let n = _mm256_cvtps_epi32(n);
        let first = _mm256_srai_epi32::<1>(n);
        let rest = _mm256_sub_epi32(n, first);
        _mm256_mul_ps(_mm256_mul_ps(v, power_of_two(first)), power_of_two(rest))
    }
}

/// `2^n` for integers in -126..=127.
#[inline(always)]
unsafe fn power_of_two(n: __m256i) -> __m256 {
    // SAFETY: the caller's proof.
    unsafe {
        let biased = _mm256_add_epi32(n, _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

/// `v` in lanes whose number is below `n`, `fill` in the others.
#[inline(always)]
unsafe fn keep_below(v: __m256, n: __m256i, lane: __m256i, fill: __m256) -> __m256 {
    // SAFETY: the caller's proof.
    unsafe { _mm256_blendv_ps(fill, v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(n, lane))) }
}

/// The same operation on both halves.
macro_rules! both {
    ($op:ident, $($arg:ident),+) => {
        // SAFETY: see the module's head.
        unsafe { [$op($($arg[0]),+), $op($($arg[1]),+)] }
    };
}

impl Lanes for Avx2 {
    type V = [__m256; 2];

    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: see the module's head.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        let start = from.as_ptr();
        // SAFETY: see the module's head.
        unsafe { [_mm256_loadu_ps(start), _mm256_loadu_ps(start.add(8))] }
    }

    #[inline(always)]
    fn load_half(self, from: &[u16; LANES]) -> Self::V {
        let start = from.as_ptr().cast::<__m128i>();
        // SAFETY: see the module's head.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(start)),
                _mm256_cvtph_ps(_mm_loadu_si128(start.add(1))),
            ]
        }
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        let start = to.as_mut_ptr();
        // SAFETY: see the module's head.
        unsafe {
            _mm256_storeu_ps(start, v[0]);
            _mm256_storeu_ps(start.add(8), v[1]);
        }
    }

    #[inline(always)]
    fn store_half(self, v: Self::V, to: &mut [u16; LANES]) {
        let start = to.as_mut_ptr().cast::<__m128i>();
        // SAFETY: see the module's head.
        unsafe {
            _mm_storeu_si128(start, _mm256_cvtps_ph::<0>(v[0]));
            _mm_storeu_si128(start.add(1), _mm256_cvtps_ph::<0>(v[1]));
        }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_sub_ps, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        both!(_mm256_fmadd_ps, a, b, c)
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_min_ps, a, b)
    }

    #[inline(always)]
    fn round(self, v: Self::V) -> Self::V {
        // SAFETY: see the module's head. 8: to nearest even, without exceptions.
        unsafe { [_mm256_round_ps::<8>(v[0]), _mm256_round_ps::<8>(v[1])] }
    }

    #[inline(always)]
    fn scale(self, v: Self::V, n: Self::V) -> Self::V {
        both!(scale_8, v, n)
    }

    #[inline(always)]
    fn swap_pairs(self, v: Self::V) -> Self::V {
        // SAFETY: see the module's head. 0xb1: lanes 1, 0, 3, 2.
        unsafe { [_mm256_permute_ps::<0xb1>(v[0]), _mm256_permute_ps::<0xb1>(v[1])] }
    }

    #[inline(always)]
    fn keep_first(self, v: Self::V, n: usize, fill: Self::V) -> Self::V {
        let n = i32::try_from(n.min(LANES)).unwrap_or(16);
        // SAFETY: see the module's head.
        unsafe {
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
            let n = _mm256_set1_epi32(n);
            [keep_below(v[0], n, low, fill[0]), keep_below(v[1], n, high, fill[1])]
        }
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        // SAFETY: see the module's head.
        unsafe { sum_8(_mm256_add_ps(v[0], v[1])) }
    }

    #[inline(always)]
    fn greatest(self, v: Self::V) -> f32 {
        // SAFETY: see the module's head.
        unsafe { greatest_8(_mm256_max_ps(v[0], v[1])) }
    }
}
