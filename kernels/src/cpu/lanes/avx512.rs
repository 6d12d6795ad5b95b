//! One 512-bit register.

#![allow(clippy::wildcard_imports, reason = "a good part of what is there is used")]

use std::arch::x86_64::*;

use super::avx2::{four_lanes, greatest_8, sum_8};
use super::{IntLanes, Kernel, LANES, Lanes, Rows};

/// Proof of AVX-512 (F, BW, DQ, VL, VBMI, VNNI), besides AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512(());

/// Runs `kernel` compiled for AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

impl Lanes for Avx512 {
    type Float = __m512;

    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn load_f32(self, from: *const u8) -> __m512 {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe { _mm512_loadu_ps(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> __m512 {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> __m512 {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn store_f32(self, v: __m512, to: *mut u8) {
        // SAFETY: writable by the caller's word; no alignment needed.
        unsafe { _mm512_storeu_ps(to.cast(), v) }
    }

    #[inline(always)]
    fn store_half(self, v: __m512, to: &mut [u16; LANES]) {
        let to = to.as_mut_ptr().cast::<__m256i>();
        // SAFETY: the whole array; no alignment needed. 0: to nearest even.
        unsafe { _mm256_storeu_si256(to, _mm512_cvtps_ph::<0>(v)) }
    }

    ops! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        // 8: to nearest even, without exceptions.
        round(v: __m512) -> __m512 = _mm512_roundscale_ps::<8>(v);
        scale(v: __m512, n: __m512) -> __m512 = _mm512_scalef_ps(v, n);
        // 0xb1: lanes 1, 0, 3, 2.
        swap_pairs(v: __m512) -> __m512 = _mm512_permute_ps::<0xb1>(v);
        keep_first(v: __m512, n: usize, fill: __m512) -> __m512 = {
            let n_others = 16_u32.saturating_sub(u32::try_from(n).unwrap_or(16));
            _mm512_mask_blend_ps(u16::MAX.checked_shr(n_others).unwrap_or(0), fill, v)
        };
        sum(v: __m512) -> f32 = sum_16(v);
        greatest(v: __m512) -> f32 = greatest_8(_mm256_max_ps(
            _mm512_castps512_ps256(v),
            _mm512_extractf32x8_ps::<1>(v),
        ));
    }
}

impl IntLanes for Avx512 {
    type Int = __m512i;

    const TILE: usize = 8;
    const WIDE_IS_OFFSET: bool = true;

    #[inline(always)]
    unsafe fn load_int(self, from: *const u8) -> __m512i {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_int(self, v: __m512i, to: *mut u8) {
        // SAFETY: writable by the caller's word; no alignment needed.
        unsafe { _mm512_storeu_si512(to.cast(), v) }
    }

    #[inline(always)]
    unsafe fn chunk(self, rows: Rows) -> [__m512i; 4] {
        // Vector `i` takes rows i, i + 4, i + 8, i + 12 in its four 128-bit parts. Transposing 4 x
        // 4 lanes inside each part then leaves the rows in order. SAFETY: sixteen bytes of each row
        // are readable by the caller's word; `self` proves the instructions.
        unsafe {
            let (a, b) = (four_rows(rows, 0), four_rows(rows, 1));
            let (c, d) = (four_rows(rows, 2), four_rows(rows, 3));
            let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab_low, cd_low),
                _mm512_unpackhi_epi64(ab_low, cd_low),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ]
        }
    }

    #[inline(always)]
    unsafe fn column(self, rows: Rows) -> __m512i {
        // SAFETY: four bytes of each row are readable by the caller's word; `self` proves the rest.
        unsafe {
            let low = _mm512_castsi128_si512(four_lanes(rows, 0));
            let low = _mm512_inserti32x4::<1>(low, four_lanes(rows, 4));
            let low = _mm512_inserti32x4::<2>(low, four_lanes(rows, 8));
            _mm512_inserti32x4::<3>(low, four_lanes(rows, 12))
        }
    }

    ops! {
        splat_int(x: u32) -> __m512i = _mm512_set1_epi32(x.cast_signed());
        and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        xor(a: __m512i, b: __m512i) -> __m512i = _mm512_xor_si512(a, b);
        sub_int(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        mul_int(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi32(a, b);
        shl(v: __m512i, n: u32) -> __m512i =
            _mm512_sll_epi32(v, _mm_cvtsi32_si128(n.cast_signed()));
        shr(v: __m512i, n: u32) -> __m512i =
            _mm512_srl_epi32(v, _mm_cvtsi32_si128(n.cast_signed()));
        dot(acc: __m512i, codes: __m512i, activations: __m512i) -> __m512i =
            _mm512_dpbusd_epi32(acc, codes, activations);
        dot_wide(acc: __m512i, codes: __m512i, activations: __m512i) -> __m512i =
            _mm512_dpbusd_epi32(acc, codes, activations);
        to_float(v: __m512i) -> __m512 = _mm512_cvtepi32_ps(v);
        half_to_float(v: __m512i) -> __m512 = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
    }
}

/// [`Lanes::sum`], also for what is written without it.
///
/// # Safety
/// The machine has AVX-512 F and DQ.
#[inline(always)]
pub(crate) unsafe fn sum_16(v: __m512) -> f32 {
    // SAFETY: by the caller.
    unsafe { sum_8(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v))) }
}

/// Sixteen bytes of rows `first`, `first + 4`, `first + 8` and `first + 12`.
///
/// # Safety
/// They can be read; the machine has AVX-512F.
#[inline(always)]
unsafe fn four_rows(rows: Rows, first: usize) -> __m512i {
    // SAFETY: by the caller.
    unsafe {
        let low = _mm512_castsi128_si512(_mm_loadu_si128(rows.row(first).cast()));
        let low = _mm512_inserti32x4::<1>(low, _mm_loadu_si128(rows.row(first + 4).cast()));
        let low = _mm512_inserti32x4::<2>(low, _mm_loadu_si128(rows.row(first + 8).cast()));
        _mm512_inserti32x4::<3>(low, _mm_loadu_si128(rows.row(first + 12).cast()))
    }
}
