//! Q4_K and Q5_K: 256 elements in 8 units with 6-bit scales and minima.
//!
//! A block starts with sixteen bytes that both share: f16 `d`, f16 `dmin`, and 12 bytes of scales.
//! Bytes 0..4 hold the scales of units 0..4 in six bits, bytes 4..8 their minima; bytes 8..12 hold
//! for units 4..8 the low four bits of the scale and, above, of the minimum; the upper two bits of
//! the first eight bytes are their upper two. Element = `d · scale · code - dmin · min`.
//!
//! Source: `block_q4_K`, `block_q5_K` and `get_scale_min_k4`, ggml.

use super::super::super::lanes::{IntLanes, Rows};
use super::{Unit, Unpack, bytes_32, field};

/// Scales and minima of a block; byte `j` of a word belongs to unit `j` or `4 + j`.
pub(in super::super) struct Scales<L: IntLanes> {
    d: L::Float,
    negated_dmin: L::Float,
    scales: [L::Int; 2],
    mins: [L::Int; 2],
}

impl<L: IntLanes> Scales<L> {
    /// # Safety
    /// Sixteen bytes can be read in each row.
    #[inline(always)]
    unsafe fn read(lanes: L, rows: Rows) -> Self {
        // SAFETY: by the caller.
        let [pair, first, second, third] = unsafe { lanes.chunk(rows) };
        Self {
            d: lanes.half_to_float(pair),
            negated_dmin: lanes.mul(lanes.half_to_float(lanes.shr(pair, 16)), lanes.splat(-1.0)),
            scales: [
                field(lanes, first, 0, 0x3f, 0),
                lanes.or(field(lanes, third, 0, 0x0f, 0), field(lanes, first, 6, 0x03, 4)),
            ],
            mins: [
                field(lanes, second, 0, 0x3f, 0),
                lanes.or(field(lanes, third, 4, 0x0f, 0), field(lanes, second, 6, 0x03, 4)),
            ],
        }
    }

    /// Scale and minimum of unit `index`.
    #[inline(always)]
    fn unit(&self, lanes: L, index: usize, codes: [L::Int; 8]) -> Unit<L> {
        #[expect(clippy::cast_possible_truncation, reason = "a bit of a word")]
        let at = 8 * (index % 4) as u32;
        let byte = lanes.splat_int(0xff);
        let scale = lanes.to_float(lanes.and(lanes.shr(self.scales[index / 4], at), byte));
        let min = lanes.to_float(lanes.and(lanes.shr(self.mins[index / 4], at), byte));
        let (scale, min) = (lanes.mul(self.d, scale), lanes.mul(self.negated_dmin, min));
        Unit { codes, scales: [scale; 2], min }
    }
}

/// Nibbles of unit `index`, from the bytes after `rows`: two units share 32 bytes.
///
/// # Safety
/// 128 bytes can be read in each row.
#[inline(always)]
unsafe fn codes<L: IntLanes>(lanes: L, rows: Rows, index: usize) -> [L::Int; 8] {
    // SAFETY: by the caller.
    let mut codes = unsafe { bytes_32(lanes, rows.add(index / 2 * 32)) };
    for codes in &mut codes {
        *codes = field(lanes, *codes, index % 2 * 4, 0x0f, 0);
    }
    codes
}

/// Scales, 32 bytes of fifth bits (bit `u` for unit `u`) if `HAS_FIFTH`, 128 bytes of nibbles.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct NibblesK<const HAS_FIFTH: bool>;

pub(in super::super) type Q4K = NibblesK<false>;
pub(in super::super) type Q5K = NibblesK<true>;

impl<const HAS_FIFTH: bool> NibblesK<HAS_FIFTH> {
    /// Where the nibbles start.
    const CODES: usize = if HAS_FIFTH { 48 } else { 16 };
}

impl<const HAS_FIFTH: bool> Unpack for NibblesK<HAS_FIFTH> {
    const BLOCK_BYTES: usize = Self::CODES + 128;
    const UNITS: usize = 8;
    const HAS_MIN: bool = true;
    type Header<L: IntLanes> = Scales<L>;

    #[inline(always)]
    unsafe fn header<L: IntLanes>(lanes: L, rows: Rows) -> Scales<L> {
        // SAFETY: `BLOCK_BYTES` a row by the caller's word.
        unsafe { Scales::read(lanes, rows) }
    }

    #[inline(always)]
    unsafe fn unit<L: IntLanes>(lanes: L, rows: Rows, header: &Scales<L>, index: usize) -> Unit<L> {
        // SAFETY: `BLOCK_BYTES` a row by the caller's word.
        let mut codes = unsafe { codes(lanes, rows.add(Self::CODES), index) };
        if HAS_FIFTH {
            // SAFETY: as above.
            let fifth = unsafe { bytes_32(lanes, rows.add(16)) };
            for (codes, fifth) in codes.iter_mut().zip(fifth) {
                *codes = lanes.or(*codes, field(lanes, fifth, index, 0x01, 4));
            }
        }
        header.unit(lanes, index, codes)
    }
}
