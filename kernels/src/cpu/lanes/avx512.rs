//! Sixteen lanes in one 512-bit register.
//!
//! SAFETY of every block: a value of [`Avx512`] exists only inside [`run`], whose caller proves the
//! instructions; and references to arrays of sixteen are valid for the whole of each access.

use core::arch::x86_64::{
    __m256i, __m512, _mm256_add_ps, _mm256_loadu_si256, _mm256_max_ps, _mm256_storeu_si256,
    _mm512_add_ps, _mm512_castps512_ps256, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_div_ps,
    _mm512_extractf32x8_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_blend_ps, _mm512_max_ps,
    _mm512_min_ps, _mm512_mul_ps, _mm512_permute_ps, _mm512_roundscale_ps, _mm512_scalef_ps,
    _mm512_set1_ps, _mm512_storeu_ps, _mm512_sub_ps,
};

use super::avx2::{greatest_8, sum_8};
use super::{LANES, Lanes, Vectorised};

/// Proof of AVX-512 F, BW, DQ and VL.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512(());

/// Runs `work` compiled for AVX-512.
///
/// # Safety
///
/// The caller proves AVX-512 F, BW, DQ and VL, besides AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run<W: Vectorised>(work: W) -> W::Output {
    work.run(Avx512(()))
}

impl Lanes for Avx512 {
    type V = __m512;

    const WIDE: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: see the module's head.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        // SAFETY: see the module's head.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn load_half(self, from: &[u16; LANES]) -> Self::V {
        // SAFETY: see the module's head.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast::<__m256i>())) }
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        // SAFETY: see the module's head.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn store_half(self, v: Self::V, to: &mut [u16; LANES]) {
        let to = to.as_mut_ptr().cast::<__m256i>();
        // SAFETY: see the module's head. 0: to nearest even.
        unsafe { _mm256_storeu_si256(to, _mm512_cvtps_ph::<0>(v)) }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the module's head.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the module's head.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the module's head.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the module's head.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: see the module's head.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the module's head.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: see the module's head.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn round(self, v: Self::V) -> Self::V {
        // SAFETY: see the module's head. 8: to nearest even, without exceptions.
        unsafe { _mm512_roundscale_ps::<8>(v) }
    }

    #[inline(always)]
    fn scale(self, v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: see the module's head.
        unsafe { _mm512_scalef_ps(v, n) }
    }

    #[inline(always)]
    fn swap_pairs(self, v: Self::V) -> Self::V {
        // SAFETY: see the module's head. 0xb1: lanes 1, 0, 3, 2.
        unsafe { _mm512_permute_ps::<0xb1>(v) }
    }

    #[inline(always)]
    fn keep_first(self, v: Self::V, n: usize, fill: Self::V) -> Self::V {
        let kept = u16::MAX.checked_shr(16_u32.saturating_sub(u32::try_from(n).unwrap_or(16)));
        // SAFETY: see the module's head.
        unsafe { _mm512_mask_blend_ps(kept.unwrap_or(0), fill, v) }
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        // SAFETY: see the module's head.
        unsafe { sum_8(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v))) }
    }

    #[inline(always)]
    fn greatest(self, v: Self::V) -> f32 {
        // SAFETY: see the module's head.
        unsafe {
            greatest_8(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
        }
    }
}
