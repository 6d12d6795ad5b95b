//! One 512-bit register.

#![allow(clippy::wildcard_imports, reason = "half of what is there is used")]

use std::arch::x86_64::*;

use super::{Rows, Simd};

/// Proof of AVX-512 with VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The machine has the instructions of [`Level::Avx512`](crate::isa::Level::Avx512).
    #[inline(always)]
    pub(super) unsafe fn assume() -> Self {
        Self(())
    }
}

macro_rules! op {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $type),*) -> $result {
            // SAFETY: `self` proves the instructions; nothing here touches memory.
            unsafe { $body }
        }
    )*};
}

impl Simd for Avx512 {
    type Int = __m512i;
    type Float = __m512;

    const TILE: usize = 8;
    const WIDE_IS_OFFSET: bool = true;

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> __m512i {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8, value: __m512i) {
        // SAFETY: writable by the caller's word; no alignment needed.
        unsafe { _mm512_storeu_si512(to.cast(), value) }
    }

    #[inline(always)]
    unsafe fn load_f(self, from: *const f32) -> __m512 {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store_f(self, to: *mut f32, value: __m512) {
        // SAFETY: writable by the caller's word; no alignment needed.
        unsafe { _mm512_storeu_ps(to, value) }
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
            let low = _mm512_castsi128_si512(super::avx2::four_lanes(rows, 0));
            let low = _mm512_inserti32x4::<1>(low, super::avx2::four_lanes(rows, 4));
            let low = _mm512_inserti32x4::<2>(low, super::avx2::four_lanes(rows, 8));
            _mm512_inserti32x4::<3>(low, super::avx2::four_lanes(rows, 12))
        }
    }

    op! {
        splat(value: u32) -> __m512i = _mm512_set1_epi32(value.cast_signed());
        and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        xor(a: __m512i, b: __m512i) -> __m512i = _mm512_xor_si512(a, b);
        sub(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        mul(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi32(a, b);
        shl(value: __m512i, count: u32) -> __m512i =
            _mm512_sll_epi32(value, _mm_cvtsi32_si128(count.cast_signed()));
        shr(value: __m512i, count: u32) -> __m512i =
            _mm512_srl_epi32(value, _mm_cvtsi32_si128(count.cast_signed()));
        dot(acc: __m512i, codes: __m512i, activations: __m512i) -> __m512i =
            _mm512_dpbusd_epi32(acc, codes, activations);
        dot_wide(acc: __m512i, codes: __m512i, activations: __m512i) -> __m512i =
            _mm512_dpbusd_epi32(acc, codes, activations);
        splat_f(value: f32) -> __m512 = _mm512_set1_ps(value);
        mul_f(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        sum(a: __m512) -> f32 = super::avx2::sum_halves(
            _mm512_castps512_ps256(a),
            _mm512_extractf32x8_ps::<1>(a),
        );
        to_float(value: __m512i) -> __m512 = _mm512_cvtepi32_ps(value);
        half_to_float(value: __m512i) -> __m512 = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(value));
    }
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
