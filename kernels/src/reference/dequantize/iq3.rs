//! IQ3_XXS and IQ3_S: points of four magnitudes, with signs.

use super::{half_at, sign, u32_at};
use crate::format::grids::{IQ3_S, IQ3_XXS, IQ3_XXS_STEPS, with_parity};

/// f16 `d`, 64 indices, and for each unit of 32 a word: four times seven signs, a 4-bit scale.
pub(super) fn iq3_xxs(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (k, out) in out.iter_mut().enumerate() {
        let word = u32_at(bytes, 66 + k / 32 * 4);
        let signs = with_parity((word >> (7 * (k / 8 % 4)) & 0x7f) as u8);
        let scale = d * (0.5 + f32::from((word >> 28) as u8)) * 0.5;
        let digit = IQ3_XXS[usize::from(bytes[2 + k / 4])][k % 4];
        let step = IQ3_XXS_STEPS[usize::from(digit)];
        *out = scale * f32::from(step) * sign(signs, k % 8);
    }
}

/// f16 `d`, 64 indices, eight bytes of their ninth bits, 32 bytes of signs, eight 4-bit scales.
pub(super) fn iq3_s(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (k, out) in out.iter_mut().enumerate() {
        let unit = k / 32;
        let scale = bytes[106 + unit / 2] >> (unit % 2 * 4) & 0x0f;
        let ninth = bytes[66 + unit] >> (k / 4 % 8) & 1;
        let point = IQ3_S[usize::from(bytes[2 + k / 4]) | usize::from(ninth) << 8];
        let scale = d * (1.0 + 2.0 * f32::from(scale));
        *out = scale * f32::from(2 * point[k % 4] + 1) * sign(bytes[74 + k / 8], k % 8);
    }
}
