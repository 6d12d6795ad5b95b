//! IQ4_NL and IQ4_XS: nibbles that number sixteen unequal steps.

use super::{half_at, nibble, u16_at};
use crate::format::grids::IQ4_STEPS;

/// The step of nibble `k` of 16 bytes.
fn step(bytes: &[u8], k: usize) -> f32 {
    f32::from(IQ4_STEPS[usize::from(nibble(bytes, k))])
}

/// f16 scale, 32 nibbles as in Q4_0.
pub(super) fn iq4_nl(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (k, out) in out.iter_mut().enumerate() {
        *out = d * step(&bytes[2..], k);
    }
}

/// f16 `d`, the upper two bits of eight scales, their low four, 16 bytes of nibbles a unit.
pub(super) fn iq4_xs(bytes: &[u8], out: &mut [f32]) {
    let (d, high) = (half_at(bytes, 0), u16_at(bytes, 2));
    for (k, out) in out.iter_mut().enumerate() {
        let unit = k / 32;
        let low = bytes[4 + unit / 2] >> (unit % 2 * 4) & 0x0f;
        let scale = u16::from(low) | (high >> (2 * unit) & 0x03) << 4;
        *out = d * (f32::from(scale) - 32.0) * step(&bytes[8 + 16 * unit..], k % 32);
    }
}
