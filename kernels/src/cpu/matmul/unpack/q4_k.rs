//! Q4_K and Q5_K: 256 elements in 8 units with 6-bit scales and minima.
//!
//! A block starts with sixteen bytes that both share: f16 `d`, f16 `dmin`, and 12 bytes of scales.
//! Bytes 0..4 hold the scales of units 0..4 in six bits, bytes 4..8 their minima; bytes 8..12 hold
//! for units 4..8 the low four bits of the scale and, above, of the minimum; the upper two bits of
//! the first eight bytes are their upper two. Element = `d · scale · code - dmin · min`.
//!
//! Source: `block_q4_K`, `block_q5_K` and `get_scale_min_k4`, ggml.

use super::super::super::simd::{Rows, Simd};
use super::{Unit, Unpack, bytes_32, field};

/// Scales and minima of a block; byte `j` of a word belongs to unit `j` or `4 + j`.
pub(in super::super) struct Scales<S: Simd> {
    d: S::Float,
    negated_dmin: S::Float,
    scales: [S::Int; 2],
    mins: [S::Int; 2],
}

impl<S: Simd> Scales<S> {
    /// # Safety
    /// Sixteen bytes can be read in each row.
    #[inline(always)]
    unsafe fn read(simd: S, rows: Rows) -> Self {
        // SAFETY: by the caller.
        let [pair, first, second, third] = unsafe { simd.chunk(rows) };
        Self {
            d: simd.half_to_float(pair),
            negated_dmin: simd.mul_f(simd.half_to_float(simd.shr(pair, 16)), simd.splat_f(-1.0)),
            scales: [
                field(simd, first, 0, 0x3f, 0),
                simd.or(field(simd, third, 0, 0x0f, 0), field(simd, first, 6, 0x03, 4)),
            ],
            mins: [
                field(simd, second, 0, 0x3f, 0),
                simd.or(field(simd, third, 4, 0x0f, 0), field(simd, second, 6, 0x03, 4)),
            ],
        }
    }

    /// Scale and minimum of unit `index`.
    #[inline(always)]
    fn unit(&self, simd: S, index: usize, codes: [S::Int; 8]) -> Unit<S> {
        #[expect(clippy::cast_possible_truncation, reason = "a bit of a word")]
        let at = 8 * (index % 4) as u32;
        let byte = simd.splat(0xff);
        let scale = simd.to_float(simd.and(simd.shr(self.scales[index / 4], at), byte));
        let min = simd.to_float(simd.and(simd.shr(self.mins[index / 4], at), byte));
        let (scale, min) = (simd.mul_f(self.d, scale), simd.mul_f(self.negated_dmin, min));
        Unit { codes, scales: [scale; 2], min }
    }
}

/// Nibbles of unit `index`, from the bytes after `rows`: two units share 32 bytes.
///
/// # Safety
/// 128 bytes can be read in each row.
#[inline(always)]
unsafe fn codes<S: Simd>(simd: S, rows: Rows, index: usize) -> [S::Int; 8] {
    // SAFETY: by the caller.
    let mut codes = unsafe { bytes_32(simd, rows.add(index / 2 * 32)) };
    for codes in &mut codes {
        *codes = field(simd, *codes, index % 2 * 4, 0x0f, 0);
    }
    codes
}

/// Scales, 128 bytes of nibbles.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Q4K;

impl Unpack for Q4K {
    const BLOCK_BYTES: usize = 144;
    const UNITS: usize = 8;
    const HAS_MIN: bool = true;
    type Header<S: Simd> = Scales<S>;

    #[inline(always)]
    unsafe fn header<S: Simd>(simd: S, rows: Rows) -> Scales<S> {
        // SAFETY: 144 bytes a row by the caller's word.
        unsafe { Scales::read(simd, rows) }
    }

    #[inline(always)]
    unsafe fn unit<S: Simd>(simd: S, rows: Rows, header: &Scales<S>, index: usize) -> Unit<S> {
        // SAFETY: 144 bytes a row by the caller's word.
        header.unit(simd, index, unsafe { codes(simd, rows.add(16), index) })
    }
}

/// Scales, 32 bytes of fifth bits (bit `u` for unit `u`), 128 bytes of nibbles.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Q5K;

impl Unpack for Q5K {
    const BLOCK_BYTES: usize = 176;
    const UNITS: usize = 8;
    const HAS_MIN: bool = true;
    type Header<S: Simd> = Scales<S>;

    #[inline(always)]
    unsafe fn header<S: Simd>(simd: S, rows: Rows) -> Scales<S> {
        // SAFETY: 176 bytes a row by the caller's word.
        unsafe { Scales::read(simd, rows) }
    }

    #[inline(always)]
    unsafe fn unit<S: Simd>(simd: S, rows: Rows, header: &Scales<S>, index: usize) -> Unit<S> {
        // SAFETY: 176 bytes a row by the caller's word.
        let (fifth, mut codes) =
            unsafe { (bytes_32(simd, rows.add(16)), codes(simd, rows.add(48), index)) };
        for (codes, fifth) in codes.iter_mut().zip(fifth) {
            *codes = simd.or(*codes, field(simd, fifth, index, 0x01, 4));
        }
        header.unit(simd, index, codes)
    }
}
