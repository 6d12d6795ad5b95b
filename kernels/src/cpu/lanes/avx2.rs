//! Two 256-bit registers.

#![allow(clippy::wildcard_imports, reason = "a good part of what is there is used")]

use std::arch::x86_64::*;

use super::{IntLanes, Kernel, LANES, Lanes, Rows};

/// Proof of AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2(());

/// Runs `kernel` compiled for AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

type Float = [__m256; 2];
type Int = [__m256i; 2];

/// The same operation on both halves.
macro_rules! both {
    ($op:ident $(::<$constant:literal>)?, $($arg:ident),+) => {
        [$op$(::<$constant>)?($($arg[0]),+), $op$(::<$constant>)?($($arg[1]),+)]
    };
}

impl Lanes for Avx2 {
    type Float = Float;

    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn load_f32(self, from: *const u8) -> Float {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe { [_mm256_loadu_ps(from.cast()), _mm256_loadu_ps(from.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Float {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe {
            let bits = [_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast())];
            both!(_mm256_cvtph_ps, bits)
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> Float {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe {
            let bits = [_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast())];
            let wide = both!(_mm256_cvtepu16_epi32, bits);
            let upper = both!(_mm256_slli_epi32::<16>, wide);
            both!(_mm256_castsi256_ps, upper)
        }
    }

    #[inline(always)]
    unsafe fn store_f32(self, v: Float, to: *mut u8) {
        // SAFETY: writable by the caller's word; no alignment needed.
        unsafe {
            _mm256_storeu_ps(to.cast(), v[0]);
            _mm256_storeu_ps(to.add(32).cast(), v[1]);
        }
    }

    #[inline(always)]
    fn store_half(self, v: Float, to: &mut [u16; LANES]) {
        let to = to.as_mut_ptr().cast::<__m128i>();
        // SAFETY: both halves of the array; no alignment needed. 0: to nearest even.
        unsafe {
            _mm_storeu_si128(to, _mm256_cvtps_ph::<0>(v[0]));
            _mm_storeu_si128(to.add(1), _mm256_cvtps_ph::<0>(v[1]));
        }
    }

    ops! {
        splat(x: f32) -> Float = [_mm256_set1_ps(x); 2];
        add(a: Float, b: Float) -> Float = both!(_mm256_add_ps, a, b);
        sub(a: Float, b: Float) -> Float = both!(_mm256_sub_ps, a, b);
        mul(a: Float, b: Float) -> Float = both!(_mm256_mul_ps, a, b);
        div(a: Float, b: Float) -> Float = both!(_mm256_div_ps, a, b);
        fma(a: Float, b: Float, c: Float) -> Float = both!(_mm256_fmadd_ps, a, b, c);
        max(a: Float, b: Float) -> Float = both!(_mm256_max_ps, a, b);
        min(a: Float, b: Float) -> Float = both!(_mm256_min_ps, a, b);
        // 8: to nearest even, without exceptions.
        round(v: Float) -> Float = both!(_mm256_round_ps::<8>, v);
        scale(v: Float, n: Float) -> Float = both!(scale_8, v, n);
        // 0xb1: lanes 1, 0, 3, 2.
        swap_pairs(v: Float) -> Float = both!(_mm256_permute_ps::<0xb1>, v);
        keep_first(v: Float, n: usize, fill: Float) -> Float = {
            let n = _mm256_set1_epi32(i32::try_from(n.min(LANES)).unwrap_or(16));
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
            [keep_below(v[0], n, low, fill[0]), keep_below(v[1], n, high, fill[1])]
        };
        sum(v: Float) -> f32 = sum_8(_mm256_add_ps(v[0], v[1]));
        greatest(v: Float) -> f32 = greatest_8(_mm256_max_ps(v[0], v[1]));
    }
}

impl IntLanes for Avx2 {
    type Int = Int;

    const TILE: usize = 2;
    const WIDE_IS_OFFSET: bool = false;

    #[inline(always)]
    unsafe fn load_int(self, from: *const u8) -> Int {
        // SAFETY: readable by the caller's word; no alignment needed.
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn store_int(self, v: Int, to: *mut u8) {
        // SAFETY: writable by the caller's word; no alignment needed.
        unsafe {
            _mm256_storeu_si256(to.cast(), v[0]);
            _mm256_storeu_si256(to.add(32).cast(), v[1]);
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

    ops! {
        splat_int(x: u32) -> Int = [_mm256_set1_epi32(x.cast_signed()); 2];
        and(a: Int, b: Int) -> Int = both!(_mm256_and_si256, a, b);
        or(a: Int, b: Int) -> Int = both!(_mm256_or_si256, a, b);
        xor(a: Int, b: Int) -> Int = both!(_mm256_xor_si256, a, b);
        sub_int(a: Int, b: Int) -> Int = both!(_mm256_sub_epi32, a, b);
        mul_int(a: Int, b: Int) -> Int = both!(_mm256_mullo_epi32, a, b);
        shl(v: Int, n: u32) -> Int = {
            let n = _mm_cvtsi32_si128(n.cast_signed());
            [_mm256_sll_epi32(v[0], n), _mm256_sll_epi32(v[1], n)]
        };
        shr(v: Int, n: u32) -> Int = {
            let n = _mm_cvtsi32_si128(n.cast_signed());
            [_mm256_srl_epi32(v[0], n), _mm256_srl_epi32(v[1], n)]
        };
        dot(acc: Int, codes: Int, activations: Int) -> Int =
            both!(dot_unsigned, acc, codes, activations);
        dot_wide(acc: Int, codes: Int, activations: Int) -> Int =
            both!(dot_signed, acc, codes, activations);
        to_float(v: Int) -> Float = both!(_mm256_cvtepi32_ps, v);
        half_to_float(v: Int) -> Float = {
            let mask = _mm256_set1_epi32(0xffff);
            let (low, high) = (_mm256_and_si256(v[0], mask), _mm256_and_si256(v[1], mask));
            // Packing works inside 128-bit parts; the permutation puts the quarters in order.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            [
                _mm256_cvtph_ps(_mm256_castsi256_si128(packed)),
                _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(packed)),
            ]
        };
    }
}

/// The sum of eight lanes: halves, quarters, pairs.
///
/// # Safety
/// The machine has AVX.
#[inline(always)]
pub(super) unsafe fn sum_8(v: __m256) -> f32 {
    // SAFETY: by the caller.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// The greatest of eight lanes, folded like [`sum_8`].
///
/// # Safety
/// The machine has AVX.
#[inline(always)]
pub(super) unsafe fn greatest_8(v: __m256) -> f32 {
    // SAFETY: by the caller.
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    }
}

/// `v * 2^n`, in two steps since 2^n itself may not be a normal number. The first is exact.
#[inline(always)]
unsafe fn scale_8(v: __m256, n: __m256) -> __m256 {
    // SAFETY: the caller has AVX2.
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
    // SAFETY: the caller has AVX2.
    unsafe {
        let biased = _mm256_add_epi32(n, _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

/// `v` in lanes whose number is below `n`, `fill` in the others.
#[inline(always)]
unsafe fn keep_below(v: __m256, n: __m256i, lane: __m256i, fill: __m256) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_blendv_ps(fill, v, _mm256_castsi256_ps(_mm256_cmpgt_epi32(n, lane))) }
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

/// [`IntLanes::chunk`] of rows `first..first + 8`; as in AVX-512, with two parts a register.
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
