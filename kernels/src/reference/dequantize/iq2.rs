//! IQ2_XXS, IQ2_XS and IQ2_S: points of eight magnitudes, with signs.

use super::{half_at, sign, u16_at, u32_at};
use crate::format::grids::{IQ2_S, IQ2_STEPS, IQ2_XS, IQ2_XXS, with_parity};

/// `scale` is four bits, `point` one of a grid, `signs` those of its eight elements.
fn element(d: f32, scale: u8, point: &[u8; 8], signs: u8, k: usize) -> f32 {
    let scale = d * (0.5 + f32::from(scale)) * 0.25;
    scale * f32::from(IQ2_STEPS[usize::from(point[k])]) * sign(signs, k)
}

/// f16 `d`, and for each unit of 32 four indices and a word: four times seven signs, a 4-bit scale.
pub(super) fn iq2_xxs(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (k, out) in out.iter_mut().enumerate() {
        let (unit, point) = (2 + k / 32 * 8, k / 8 % 4);
        let word = u32_at(bytes, unit + 4);
        let signs = with_parity((word >> (7 * point) & 0x7f) as u8);
        let point = &IQ2_XXS[usize::from(bytes[unit + point])];
        *out = element(d, (word >> 28) as u8, point, signs, k % 8);
    }
}

/// f16 `d`, 32 words of a 9-bit index and seven signs, sixteen 4-bit scales.
pub(super) fn iq2_xs(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (k, out) in out.iter_mut().enumerate() {
        let word = u16_at(bytes, 2 + k / 8 * 2);
        let scale = bytes[66 + k / 32] >> (k / 16 % 2 * 4) & 0x0f;
        let point = &IQ2_XS[usize::from(word & 0x1ff)];
        *out = element(d, scale, point, with_parity((word >> 9) as u8), k % 8);
    }
}

/// f16 `d`, the low eight bits of 32 indices, 32 bytes of signs, the indices' upper two bits,
/// sixteen 4-bit scales.
pub(super) fn iq2_s(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (k, out) in out.iter_mut().enumerate() {
        let upper = bytes[66 + k / 32] >> (2 * (k / 8 % 4)) & 0x03;
        let point = &IQ2_S[usize::from(bytes[2 + k / 8]) | usize::from(upper) << 8];
        let scale = bytes[74 + k / 32] >> (k / 16 % 2 * 4) & 0x0f;
        *out = element(d, scale, point, bytes[34 + k / 8], k % 8);
    }
}
