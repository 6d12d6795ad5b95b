//! Formats of 32 elements with an f16 scale: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1.
//!
//! Nibble formats keep elements 0..16 in the low nibbles and 16..32 in the high ones. Five-bit
//! formats keep the fifth bits in one 32-bit word, bit `k` for element `k`.
//!
//! Source: `block_q8_0` and so on, `ggml-common.h`.

use super::super::super::lanes::{IntLanes, Rows};
use super::{Unit, Unpack, bytes_32, nibbles, wide};

/// Adds bit `k` of `fifth` as bit 4 of element `k`.
#[inline(always)]
fn with_fifth_bits<L: IntLanes>(lanes: L, mut codes: [L::Int; 8], fifth: L::Int) -> [L::Int; 8] {
    let (nibble, spread) = (lanes.splat_int(0xf), lanes.splat_int(0x0020_4081));
    let ones = lanes.splat_int(0x0101_0101);
    for (codes, at) in codes.iter_mut().zip((0..32).step_by(4)) {
        // Four bits times 1 + 2^7 + 2^14 + 2^21 puts bit j at bit 8j; no two terms meet.
        let bits = lanes.and(lanes.shr(fifth, at), nibble);
        let bits = lanes.and(lanes.mul_int(bits, spread), ones);
        *codes = lanes.or(*codes, lanes.shl(bits, 4));
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
    type Header<L: IntLanes> = ();

    #[inline(always)]
    unsafe fn header<L: IntLanes>(_: L, _: Rows) {}

    #[inline(always)]
    unsafe fn unit<L: IntLanes>(lanes: L, rows: Rows, (): &(), _: usize) -> Unit<L> {
        // SAFETY: 34 bytes a row by the caller's word.
        let (scale, mut codes) = unsafe { (lanes.column(rows), bytes_32(lanes, rows.add(2))) };
        for codes in &mut codes {
            *codes = wide(lanes, *codes);
        }
        let scale = lanes.half_to_float(scale);
        Unit { codes, scales: [scale; 2], min: scale }
    }
}

/// f16 scale, f16 minimum if `HAS_MIN`, fifth bits if `HAS_FIFTH`, 32 nibbles. Without a minimum
/// the middle code is zero.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Nibbles<const HAS_MIN: bool, const HAS_FIFTH: bool>;

pub(in super::super) type Q4_0 = Nibbles<false, false>;
pub(in super::super) type Q4_1 = Nibbles<true, false>;
pub(in super::super) type Q5_0 = Nibbles<false, true>;
pub(in super::super) type Q5_1 = Nibbles<true, true>;

impl<const HAS_MIN: bool, const HAS_FIFTH: bool> Nibbles<HAS_MIN, HAS_FIFTH> {
    /// Where the fifth bits start, or else the nibbles.
    const FIFTH: usize = if HAS_MIN { 4 } else { 2 };
    /// Where the nibbles start.
    const CODES: usize = Self::FIFTH + if HAS_FIFTH { 4 } else { 0 };
}

impl<const HAS_MIN: bool, const HAS_FIFTH: bool> Unpack for Nibbles<HAS_MIN, HAS_FIFTH> {
    const BLOCK_BYTES: usize = Self::CODES + 16;
    const UNITS: usize = 1;
    const ZERO_LOG2: Option<u32> = match (HAS_MIN, HAS_FIFTH) {
        (true, _) => None,
        (false, false) => Some(3),
        (false, true) => Some(4),
    };
    const HAS_MIN: bool = HAS_MIN;
    type Header<L: IntLanes> = ();

    #[inline(always)]
    unsafe fn header<L: IntLanes>(_: L, _: Rows) {}

    #[inline(always)]
    unsafe fn unit<L: IntLanes>(lanes: L, rows: Rows, (): &(), _: usize) -> Unit<L> {
        // SAFETY: `BLOCK_BYTES` a row by the caller's word.
        let (pair, bytes) = unsafe { (lanes.column(rows), lanes.chunk(rows.add(Self::CODES))) };
        let mut codes = nibbles(lanes, bytes);
        if HAS_FIFTH {
            // SAFETY: as above.
            let fifth = unsafe { lanes.column(rows.add(Self::FIFTH)) };
            codes = with_fifth_bits(lanes, codes, fifth);
        }
        let scale = lanes.half_to_float(pair);
        let min = if HAS_MIN { lanes.half_to_float(lanes.shr(pair, 16)) } else { scale };
        Unit { codes, scales: [scale; 2], min }
    }
}
