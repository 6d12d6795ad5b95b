//! How each block format becomes codes and scales. A new format is a file here, a line in
//! [`matmul`](super::matmul)'s table, and its sizes in `format.rs`.

mod legacy;
mod q4_k;
mod q6_k;

pub(super) use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(super) use q4_k::{Q4K, Q5K};
pub(super) use q6_k::Q6K;

use super::super::simd::{Rows, Simd};

/// Sixteen rows × 32 columns: element = `scale · (code - zero) + min`.
pub(super) struct Unit<S: Simd> {
    /// Byte `j` of lane `r` of vector `g`: row `r`, column `4g + j`.
    pub(super) codes: [S::Int; 8],
    /// Of each row; the second counts only if the format is split.
    pub(super) scales: [S::Float; 2],
    /// Of each row; counts only if the format has minima.
    pub(super) min: S::Float,
}

/// A block format of quantized weights.
pub(super) trait Unpack: Copy + Default + Send + Sync {
    /// Bytes of a block.
    const BLOCK_BYTES: usize;
    /// Units of 32 columns in a block.
    const UNITS: usize;
    /// Codes use all eight bits; they are signed, and `wide` gives them the form the level wants.
    const IS_WIDE: bool = false;
    /// Logarithm of the code that stands for zero; `None` if that is 0. For codes that are not
    /// wide.
    const ZERO_LOG2: Option<u32> = None;
    /// Scales are per 16 columns rather than 32.
    const IS_SPLIT: bool = false;
    /// Elements have a minimum added.
    const HAS_MIN: bool = false;

    /// What all units of a block share.
    type Header<S: Simd>;

    /// # Safety
    /// `rows` point to a block in each row.
    unsafe fn header<S: Simd>(simd: S, rows: Rows) -> Self::Header<S>;

    /// # Safety
    /// `rows` point to a block in each row, `header` is theirs, and `index` is below `UNITS`.
    unsafe fn unit<S: Simd>(simd: S, rows: Rows, header: &Self::Header<S>, index: usize)
    -> Unit<S>;
}

/// Signed codes in the form that `dot_wide` takes.
#[inline(always)]
fn wide<S: Simd>(simd: S, codes: S::Int) -> S::Int {
    if S::WIDE_IS_OFFSET { simd.xor(codes, simd.splat(0x8080_8080)) } else { codes }
}

/// The low nibbles of sixteen bytes a row, then the high ones.
#[inline(always)]
fn nibbles<S: Simd>(simd: S, bytes: [S::Int; 4]) -> [S::Int; 8] {
    let mask = simd.splat(0x0f0f_0f0f);
    let [a, b, c, d] = bytes;
    [
        simd.and(a, mask),
        simd.and(b, mask),
        simd.and(c, mask),
        simd.and(d, mask),
        simd.and(simd.shr(a, 4), mask),
        simd.and(simd.shr(b, 4), mask),
        simd.and(simd.shr(c, 4), mask),
        simd.and(simd.shr(d, 4), mask),
    ]
}

/// 32 bytes a row.
///
/// # Safety
/// They can be read.
#[inline(always)]
unsafe fn bytes_32<S: Simd>(simd: S, rows: Rows) -> [S::Int; 8] {
    // SAFETY: by the caller.
    let ([a, b, c, d], [e, f, g, h]) = unsafe { (simd.chunk(rows), simd.chunk(rows.add(16))) };
    [a, b, c, d, e, f, g, h]
}

/// Bits `from..` of every byte, as many as `mask` has ones, moved to bit `to`.
#[inline(always)]
fn field<S: Simd>(simd: S, value: S::Int, from: usize, mask: u8, to: u32) -> S::Int {
    #[expect(clippy::cast_possible_truncation, reason = "a bit of a byte")]
    let shifted = simd.shr(value, from as u32);
    simd.shl(simd.and(shifted, simd.splat(u32::from_ne_bytes([mask; 4]))), to)
}
