//! Formats of 32 elements with an f16 scale: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.
//!
//! Nibble formats keep elements 0..16 in the low nibbles and 16..32 in the high ones. Five-bit
//! formats keep the fifth bits in one 32-bit word, bit `k` for element `k`.
//!
//! Source: `block_q8_0` and so on, `ggml-common.h`.

use super::super::super::simd::{Rows, Simd};
use super::{Unit, Unpack, bytes_32, nibbles, wide};

/// Scale and eight vectors of codes, without a minimum.
#[inline(always)]
fn scaled<S: Simd>(simd: S, scale: S::Int, codes: [S::Int; 8]) -> Unit<S> {
    let scale = simd.half_to_float(scale);
    Unit { codes, scales: [scale; 2], min: scale }
}

/// Scale in the lower halves, minimum in the upper ones.
#[inline(always)]
fn scaled_min<S: Simd>(simd: S, pair: S::Int, codes: [S::Int; 8]) -> Unit<S> {
    let scale = simd.half_to_float(pair);
    Unit { codes, scales: [scale; 2], min: simd.half_to_float(simd.shr(pair, 16)) }
}

/// Adds bit `k` of `fifth` as bit 4 of element `k`.
#[inline(always)]
fn with_fifth_bits<S: Simd>(simd: S, mut codes: [S::Int; 8], fifth: S::Int) -> [S::Int; 8] {
    let (nibble, spread) = (simd.splat(0xf), simd.splat(0x0020_4081));
    let ones = simd.splat(0x0101_0101);
    for (codes, at) in codes.iter_mut().zip((0..32).step_by(4)) {
        // Four bits times 1 + 2^7 + 2^14 + 2^21 puts bit j at bit 8j; no two terms meet.
        let bits = simd.and(simd.shr(fifth, at), nibble);
        let bits = simd.and(simd.mul(bits, spread), ones);
        *codes = simd.or(*codes, simd.shl(bits, 4));
    }
    codes
}

/// f16 scale, 32 signed bytes.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Q8_0;

impl Unpack for Q8_0 {
    const BLOCK_BYTES: usize = 34;
    const UNITS: usize = 1;
    const IS_WIDE: bool = true;
    type Header<S: Simd> = ();

    #[inline(always)]
    unsafe fn header<S: Simd>(_: S, _: Rows) {}

    #[inline(always)]
    unsafe fn unit<S: Simd>(simd: S, rows: Rows, (): &(), _: usize) -> Unit<S> {
        // SAFETY: 34 bytes a row by the caller's word.
        let (scale, mut codes) = unsafe { (simd.column(rows), bytes_32(simd, rows.add(2))) };
        for codes in &mut codes {
            *codes = wide(simd, *codes);
        }
        scaled(simd, scale, codes)
    }
}

/// f16 scale, 32 nibbles; 8 is zero.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Q4_0;

impl Unpack for Q4_0 {
    const BLOCK_BYTES: usize = 18;
    const UNITS: usize = 1;
    const ZERO_LOG2: Option<u32> = Some(3);
    type Header<S: Simd> = ();

    #[inline(always)]
    unsafe fn header<S: Simd>(_: S, _: Rows) {}

    #[inline(always)]
    unsafe fn unit<S: Simd>(simd: S, rows: Rows, (): &(), _: usize) -> Unit<S> {
        // SAFETY: 18 bytes a row by the caller's word.
        let (scale, bytes) = unsafe { (simd.column(rows), simd.chunk(rows.add(2))) };
        scaled(simd, scale, nibbles(simd, bytes))
    }
}

/// f16 scale, f16 minimum, 32 nibbles.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Q4_1;

impl Unpack for Q4_1 {
    const BLOCK_BYTES: usize = 20;
    const UNITS: usize = 1;
    const HAS_MIN: bool = true;
    type Header<S: Simd> = ();

    #[inline(always)]
    unsafe fn header<S: Simd>(_: S, _: Rows) {}

    #[inline(always)]
    unsafe fn unit<S: Simd>(simd: S, rows: Rows, (): &(), _: usize) -> Unit<S> {
        // SAFETY: 20 bytes a row by the caller's word.
        let (pair, bytes) = unsafe { (simd.column(rows), simd.chunk(rows.add(4))) };
        scaled_min(simd, pair, nibbles(simd, bytes))
    }
}

/// f16 scale, fifth bits, 32 nibbles; 16 is zero.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Q5_0;

impl Unpack for Q5_0 {
    const BLOCK_BYTES: usize = 22;
    const UNITS: usize = 1;
    const ZERO_LOG2: Option<u32> = Some(4);
    type Header<S: Simd> = ();

    #[inline(always)]
    unsafe fn header<S: Simd>(_: S, _: Rows) {}

    #[inline(always)]
    unsafe fn unit<S: Simd>(simd: S, rows: Rows, (): &(), _: usize) -> Unit<S> {
        // SAFETY: 22 bytes a row by the caller's word.
        let (scale, fifth, bytes) =
            unsafe { (simd.column(rows), simd.column(rows.add(2)), simd.chunk(rows.add(6))) };
        scaled(simd, scale, with_fifth_bits(simd, nibbles(simd, bytes), fifth))
    }
}

/// f16 scale, f16 minimum, fifth bits, 32 nibbles.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Q5_1;

impl Unpack for Q5_1 {
    const BLOCK_BYTES: usize = 24;
    const UNITS: usize = 1;
    const HAS_MIN: bool = true;
    type Header<S: Simd> = ();

    #[inline(always)]
    unsafe fn header<S: Simd>(_: S, _: Rows) {}

    #[inline(always)]
    unsafe fn unit<S: Simd>(simd: S, rows: Rows, (): &(), _: usize) -> Unit<S> {
        // SAFETY: 24 bytes a row by the caller's word.
        let (pair, fifth, bytes) =
            unsafe { (simd.column(rows), simd.column(rows.add(4)), simd.chunk(rows.add(8))) };
        scaled_min(simd, pair, with_fifth_bits(simd, nibbles(simd, bytes), fifth))
    }
}
