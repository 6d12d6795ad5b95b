//! Two 256-bit registers.

#![allow(clippy::wildcard_imports, reason = "half of what is there is used")]

use std::arch::x86_64::*;

use super::{Rows, Simd};

/// Proof of AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The machine has the instructions of [`Level::Avx2`](crate::isa::Level::Avx2).
    #[inline(always)]
    pub(super) unsafe fn assume() -> Self {
        Self(())
    }
}

type Int = [__m256i; 2];
type Float = [__m256; 2];

macro_rules! op {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $type),*) -> $result {
            // SAFETY: `self` proves the instructions; nothing here touches memory.
            unsafe { $body }
        }
    )*};
}

impl Simd for Avx2 {
    type Int = Int;
    type Float = Float;

    const TILE: usize = 2;
    const WIDE_IS_OFFSET: bool = false;

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> Int {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8, value: Int) {
        // SAFETY: writable by the caller's word; no alignment needed.
        unsafe {
            _mm256_storeu_si256(to.cast(), value[0]);
            _mm256_storeu_si256(to.add(32).cast(), value[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_f(self, from: *const f32) -> Float {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn store_f(self, to: *mut f32, value: Float) {
        // SAFETY: writable by the caller's word; no alignment needed.
        unsafe {
            _mm256_storeu_ps(to, value[0]);
            _mm256_storeu_ps(to.add(8), value[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Float {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> Float {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(16).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn chunk(self, rows: Rows) -> [Int; 4] {
        // SAFETY: sixteen bytes of each row are readable by the caller's word; `self` proves the
        // rest.
        let (low, high) = unsafe { (chunk_of_eight(rows, 0), chunk_of_eight(rows, 8)) };
        [[low[0], high[0]], [low[1], high[1]], [low[2], high[2]], [low[3], high[3]]]
    }

    #[inline(always)]
    unsafe fn column(self, rows: Rows) -> Int {
        // SAFETY: four bytes of each row are readable by the caller's word; `self` proves the rest.
        unsafe {
            [
                _mm256_set_m128i(four_lanes(rows, 4), four_lanes(rows, 0)),
                _mm256_set_m128i(four_lanes(rows, 12), four_lanes(rows, 8)),
            ]
        }
    }

    op! {
        splat(value: u32) -> Int = [_mm256_set1_epi32(value.cast_signed()); 2];
        and(a: Int, b: Int) -> Int = [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])];
        or(a: Int, b: Int) -> Int = [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])];
        xor(a: Int, b: Int) -> Int = [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])];
        sub(a: Int, b: Int) -> Int = [_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])];
        mul(a: Int, b: Int) -> Int =
            [_mm256_mullo_epi32(a[0], b[0]), _mm256_mullo_epi32(a[1], b[1])];
        shl(value: Int, count: u32) -> Int = {
            let count = _mm_cvtsi32_si128(count.cast_signed());
            [_mm256_sll_epi32(value[0], count), _mm256_sll_epi32(value[1], count)]
        };
        shr(value: Int, count: u32) -> Int = {
            let count = _mm_cvtsi32_si128(count.cast_signed());
            [_mm256_srl_epi32(value[0], count), _mm256_srl_epi32(value[1], count)]
        };
        dot(acc: Int, codes: Int, activations: Int) -> Int = [
            dot_unsigned(acc[0], codes[0], activations[0]),
            dot_unsigned(acc[1], codes[1], activations[1]),
        ];
        dot_wide(acc: Int, codes: Int, activations: Int) -> Int = [
            dot_signed(acc[0], codes[0], activations[0]),
            dot_signed(acc[1], codes[1], activations[1]),
        ];
        splat_f(value: f32) -> Float = [_mm256_set1_ps(value); 2];
        mul_f(a: Float, b: Float) -> Float = [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])];
        fma(a: Float, b: Float, c: Float) -> Float =
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])];
        sum(a: Float) -> f32 = sum_halves(a[0], a[1]);
        to_float(value: Int) -> Float =
            [_mm256_cvtepi32_ps(value[0]), _mm256_cvtepi32_ps(value[1])];
        half_to_float(value: Int) -> Float = {
            let mask = _mm256_set1_epi32(0xffff);
            let low = _mm256_and_si256(value[0], mask);
            let high = _mm256_and_si256(value[1], mask);
            // Packing works inside 128-bit parts; the permutation puts the quarters in order.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            [
                _mm256_cvtph_ps(_mm256_castsi256_si128(packed)),
                _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(packed)),
            ]
        };
    }
}

/// The first four bytes of rows `first..first + 4`.
///
/// # Safety
/// They can be read.
#[inline(always)]
pub(super) unsafe fn four_lanes(rows: Rows, first: usize) -> __m128i {
    // SAFETY: by the caller; SSE2 is in the baseline.
    unsafe {
        _mm_setr_epi32(
            rows.row(first).cast::<i32>().read_unaligned(),
            rows.row(first + 1).cast::<i32>().read_unaligned(),
            rows.row(first + 2).cast::<i32>().read_unaligned(),
            rows.row(first + 3).cast::<i32>().read_unaligned(),
        )
    }
}

/// Sixteen bytes of rows `first` and `first + 4`.
///
/// # Safety
/// They can be read; the machine has AVX2.
#[inline(always)]
unsafe fn two_rows(rows: Rows, first: usize) -> __m256i {
    // SAFETY: by the caller.
    unsafe { _mm256_loadu2_m128i(rows.row(first + 4).cast(), rows.row(first).cast()) }
}

/// [`Simd::chunk`] of rows `first..first + 8`; as in AVX-512, with two parts a register.
///
/// # Safety
/// Sixteen bytes can be read in each row; the machine has AVX2.
#[inline(always)]
unsafe fn chunk_of_eight(rows: Rows, first: usize) -> [__m256i; 4] {
    // SAFETY: by the caller.
    unsafe {
        let (a, b) = (two_rows(rows, first), two_rows(rows, first + 1));
        let (c, d) = (two_rows(rows, first + 2), two_rows(rows, first + 3));
        let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab_low, cd_low),
            _mm256_unpackhi_epi64(ab_low, cd_low),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}

/// No pair of products saturates: 2 · 127 · 127 < 2^15.
#[inline(always)]
unsafe fn dot_unsigned(acc: __m256i, codes: __m256i, activations: __m256i) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let pairs = _mm256_maddubs_epi16(codes, activations);
        _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
    }
}

/// The sign of a code moves to its activation. No pair saturates: 2 · 128 · 127 < 2^15.
#[inline(always)]
unsafe fn dot_signed(acc: __m256i, codes: __m256i, activations: __m256i) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { dot_unsigned(acc, _mm256_abs_epi8(codes), _mm256_sign_epi8(activations, codes)) }
}

/// Sum of sixteen lanes, by the tree of [`Simd::sum`].
#[inline(always)]
pub(crate) unsafe fn sum_halves(low: __m256, high: __m256) -> f32 {
    // SAFETY: the caller has AVX.
    unsafe {
        let eight = _mm256_add_ps(low, high);
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}
