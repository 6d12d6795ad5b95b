//! Q6_K: 256 elements with 8-bit scales per 16; six-bit codes, 32 is zero.
//!
//! A block is 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales, f16 `d`.
//! Unit `u` of eight is quarter `q = u % 4` of half `h = u / 4`: its nibbles are in bytes `64h +
//! 32(q % 2)..`, low for `q < 2`, its upper bits in bytes `128 + 32h..` at bit `2q`, its scales are
//! `2u` and `2u + 1`.
//!
//! Source: `block_q6_K` and `dequantize_row_q6_K`, ggml.

use super::super::super::lanes::{IntLanes, Rows};
use super::{Unit, Unpack, bytes_32, field};

/// See the head of this module.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Q6K;

/// Scale of the block, and the sixteen scales as four words.
pub(in super::super) struct Scales<L: IntLanes> {
    d: L::Float,
    scales: [L::Int; 4],
}

impl<L: IntLanes> Scales<L> {
    /// Scale number `at` of the block.
    #[inline(always)]
    fn scale(&self, lanes: L, at: usize) -> L::Float {
        #[expect(clippy::cast_possible_truncation, reason = "a bit of a word")]
        let byte = lanes.shr(self.scales[at / 4], 8 * (at % 4) as u32);
        // A signed byte as the difference of two unsigned ones: (b ^ 128) - 128.
        let byte = lanes.xor(lanes.and(byte, lanes.splat_int(0xff)), lanes.splat_int(0x80));
        lanes.mul(self.d, lanes.to_float(lanes.sub_int(byte, lanes.splat_int(0x80))))
    }
}

impl Unpack for Q6K {
    const BLOCK_BYTES: usize = 210;
    const UNITS: usize = 8;
    const ZERO_LOG2: Option<u32> = Some(5);
    const IS_SPLIT: bool = true;
    type Header<L: IntLanes> = Scales<L>;

    #[inline(always)]
    unsafe fn header<L: IntLanes>(lanes: L, rows: Rows) -> Scales<L> {
        // SAFETY: 210 bytes a row by the caller's word. The word that ends with `d` starts at 206.
        let (last, scales) = unsafe { (lanes.column(rows.add(206)), lanes.chunk(rows.add(192))) };
        Scales { d: lanes.half_to_float(lanes.shr(last, 16)), scales }
    }

    #[inline(always)]
    unsafe fn unit<L: IntLanes>(lanes: L, rows: Rows, header: &Scales<L>, index: usize) -> Unit<L> {
        let (half, quarter) = (index / 4, index % 4);
        // SAFETY: 210 bytes a row by the caller's word.
        let (mut codes, upper) = unsafe {
            (
                bytes_32(lanes, rows.add(64 * half + 32 * (quarter % 2))),
                bytes_32(lanes, rows.add(128 + 32 * half)),
            )
        };
        for (codes, upper) in codes.iter_mut().zip(upper) {
            let low = field(lanes, *codes, quarter / 2 * 4, 0x0f, 0);
            *codes = lanes.or(low, field(lanes, upper, 2 * quarter, 0x03, 4));
        }
        let scales = [header.scale(lanes, 2 * index), header.scale(lanes, 2 * index + 1)];
        Unit { codes, scales, min: scales[0] }
    }
}
