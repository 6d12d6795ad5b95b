//! IQ1_S and IQ1_M: points of eight of -1, 0, 1, all moved by an eighth up or down.

use half::f16;

use super::{half_at, u16_at};
use crate::format::grids::IQ1;

/// Element `k` of point `index`, moved down if `is_lower`.
fn element(index: usize, k: usize, is_lower: bool) -> f32 {
    f32::from(IQ1[index][k]) - 1.0 + if is_lower { -0.125 } else { 0.125 }
}

/// f16 `d`, the low eight bits of 32 indices, and for each unit of 32 a word: four times the upper
/// three bits of an index, a 3-bit scale, the direction of the move.
pub(super) fn iq1_s(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (k, out) in out.iter_mut().enumerate() {
        let word = u16_at(bytes, 34 + k / 32 * 2);
        let upper = word >> (3 * (k / 8 % 4)) & 0x07;
        let index = usize::from(bytes[2 + k / 8]) | usize::from(upper) << 8;
        let scale = d * (2.0 * f32::from((word >> 12 & 0x07) as u8) + 1.0);
        *out = scale * element(index, k % 8, word >> 15 == 1);
    }
}

/// The low eight bits of 32 indices; a nibble for each: the upper three bits, the direction; four
/// words of four 3-bit scales, whose upper four bits together are an f16, the lowest first.
pub(super) fn iq1_m(bytes: &[u8], out: &mut [f32]) {
    let words = [48, 50, 52, 54].map(|at| u16_at(bytes, at));
    let d = words.iter().rev().fold(0, |bits, word| bits << 4 | word >> 12);
    let d = f16::from_bits(d).to_f32();
    for (k, out) in out.iter_mut().enumerate() {
        let upper = bytes[32 + k / 16] >> (k / 8 % 2 * 4);
        let index = usize::from(bytes[k / 8]) | usize::from(upper & 0x07) << 8;
        let scale = words[k / 64] >> (k / 16 % 4 * 3) & 0x07;
        let scale = d * (2.0 * f32::from(scale) + 1.0);
        *out = scale * element(index, k % 8, upper & 0x08 != 0);
    }
}
