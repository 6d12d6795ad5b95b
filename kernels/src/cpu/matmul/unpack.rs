//! How each block format becomes codes and scales. A new format is a file here, a line in
//! [`matmul`](super::matmul)'s table, and its sizes in `format.rs`.

mod legacy;
mod q4_k;
mod q6_k;

pub(super) use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(super) use q4_k::{Q4K, Q5K};
pub(super) use q6_k::Q6K;

use super::super::lanes::{IntLanes, Rows};

/// Sixteen rows × 32 columns: element = `scale · (code - zero) + min`.
pub(super) struct Unit<L: IntLanes> {
    /// Byte `j` of lane `r` of vector `g`: row `r`, column `4g + j`.
    pub(super) codes: [L::Int; 8],
    /// Of each row; the second counts only if the format is split.
    pub(super) scales: [L::Float; 2],
    /// Of each row; counts only if the format has minima.
    pub(super) min: L::Float,
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
    type Header<L: IntLanes>;

    /// # Safety
    /// `rows` point to a block in each row.
    unsafe fn header<L: IntLanes>(lanes: L, rows: Rows) -> Self::Header<L>;

    /// # Safety
    /// `rows` point to a block in each row, `header` is theirs, and `index` is below `UNITS`.
    unsafe fn unit<L: IntLanes>(
        lanes: L,
        rows: Rows,
        header: &Self::Header<L>,
        index: usize,
    ) -> Unit<L>;
}

/// Signed codes in the form that `dot_wide` takes.
#[inline(always)]
fn wide<L: IntLanes>(lanes: L, codes: L::Int) -> L::Int {
    if L::WIDE_IS_OFFSET { lanes.xor(codes, lanes.splat_int(0x8080_8080)) } else { codes }
}

/// The low nibbles of sixteen bytes a row, then the high ones.
#[inline(always)]
fn nibbles<L: IntLanes>(lanes: L, bytes: [L::Int; 4]) -> [L::Int; 8] {
    let mask = lanes.splat_int(0x0f0f_0f0f);
    let [a, b, c, d] = bytes;
    [
        lanes.and(a, mask),
        lanes.and(b, mask),
        lanes.and(c, mask),
        lanes.and(d, mask),
        lanes.and(lanes.shr(a, 4), mask),
        lanes.and(lanes.shr(b, 4), mask),
        lanes.and(lanes.shr(c, 4), mask),
        lanes.and(lanes.shr(d, 4), mask),
    ]
}

/// 32 bytes a row.
///
/// # Safety
/// They can be read.
#[inline(always)]
unsafe fn bytes_32<L: IntLanes>(lanes: L, rows: Rows) -> [L::Int; 8] {
    // SAFETY: by the caller.
    let ([a, b, c, d], [e, f, g, h]) = unsafe { (lanes.chunk(rows), lanes.chunk(rows.add(16))) };
    [a, b, c, d, e, f, g, h]
}

/// Bits `from..` of every byte, as many as `mask` has ones, moved to bit `to`.
#[inline(always)]
fn field<L: IntLanes>(lanes: L, value: L::Int, from: usize, mask: u8, to: u32) -> L::Int {
    #[expect(clippy::cast_possible_truncation, reason = "a bit of a byte")]
    let shifted = lanes.shr(value, from as u32);
    lanes.shl(lanes.and(shifted, lanes.splat_int(u32::from_ne_bytes([mask; 4]))), to)
}
