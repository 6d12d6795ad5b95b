//! Blocks of 32 or 64 elements: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_0.

use super::{half_at, nibble};

/// Bit `k` of a little-endian word, as bit 4.
fn fifth_bit(word: &[u8], k: usize) -> u8 {
    (word[k / 8] >> (k % 8) & 1) << 4
}

pub(super) fn q8_0(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (out, code) in out.iter_mut().zip(&bytes[2..]) {
        *out = d * f32::from(code.cast_signed());
    }
}

pub(super) fn q4_0(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (k, out) in out.iter_mut().enumerate() {
        *out = d * (f32::from(nibble(&bytes[2..], k)) - 8.0);
    }
}

pub(super) fn q4_1(bytes: &[u8], out: &mut [f32]) {
    let (d, min) = (half_at(bytes, 0), half_at(bytes, 2));
    for (k, out) in out.iter_mut().enumerate() {
        *out = d * f32::from(nibble(&bytes[4..], k)) + min;
    }
}

pub(super) fn q5_0(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (k, out) in out.iter_mut().enumerate() {
        let code = nibble(&bytes[6..], k) | fifth_bit(&bytes[2..6], k);
        *out = d * (f32::from(code) - 16.0);
    }
}

pub(super) fn q5_1(bytes: &[u8], out: &mut [f32]) {
    let (d, min) = (half_at(bytes, 0), half_at(bytes, 2));
    for (k, out) in out.iter_mut().enumerate() {
        let code = nibble(&bytes[8..], k) | fifth_bit(&bytes[4..8], k);
        *out = d * f32::from(code) + min;
    }
}

/// f16 scale, 64 codes of two bits, the low bits of a byte first; 1 is zero.
pub(super) fn q2_0(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (k, out) in out.iter_mut().enumerate() {
        let code = bytes[2 + k / 4] >> (2 * (k % 4)) & 0x03;
        *out = d * (f32::from(code) - 1.0);
    }
}
