//! MXFP4 and NVFP4: four-bit floats with small scales.
//!
//! The table of four-bit floats holds them doubled, so scales are halved.

use super::nibble;
use crate::format::grids::FP4_STEPS;

/// Half of `2^(exponent - 127)`.
fn half_power(exponent: u8) -> f32 {
    match exponent {
        // Not a normal number any more.
        0 | 1 => f32::from_bits(1 << (21 + exponent)),
        _ => f32::from_bits((u32::from(exponent) - 1) << 23),
    }
}

/// An exponent, 32 nibbles as in Q4_0.
pub(super) fn mxfp4(bytes: &[u8], out: &mut [f32]) {
    let scale = half_power(bytes[0]);
    for (k, out) in out.iter_mut().enumerate() {
        *out = scale * f32::from(FP4_STEPS[usize::from(nibble(&bytes[1..], k))]);
    }
}

/// Half of an E4M3 number without sign; its NaN counts as zero, and bit 7 is not looked at
/// otherwise.
fn half_e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (bits >> 3 & 0x0f, f32::from(bits & 0x07));
    match (bits, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa / 1024.0,
        _ => (1.0 + mantissa / 8.0) * half_power(exponent + 120),
    }
}

/// Four scales, then for each sixteen elements eight bytes of nibbles, the low ones first.
pub(super) fn nvfp4(bytes: &[u8], out: &mut [f32]) {
    for (k, out) in out.iter_mut().enumerate() {
        let code = bytes[4 + k / 16 * 8 + k % 8] >> (k / 8 % 2 * 4) & 0x0f;
        *out = half_e4m3(bytes[k / 16]) * f32::from(FP4_STEPS[usize::from(code)]);
    }
}
