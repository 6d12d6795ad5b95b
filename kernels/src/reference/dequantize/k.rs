//! Blocks of 256 elements with packed scales: Q2_K to Q6_K.

use super::half_at;

/// Sixteen bytes of a scale and, above, a minimum; 64 bytes of bit pairs, 32 elements from each
/// pair of 32 bytes; f16 `d`, f16 `dmin`.
pub(super) fn q2_k(bytes: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(bytes, 80), half_at(bytes, 82));
    for (k, out) in out.iter_mut().enumerate() {
        let (scale, min) = (bytes[k / 16] & 0x0f, bytes[k / 16] >> 4);
        let code = bytes[16 + k / 128 * 32 + k % 32] >> (2 * (k / 32 % 4)) & 0x03;
        *out = d * f32::from(scale) * f32::from(code) - dmin * f32::from(min);
    }
}

/// Six-bit scale of unit `unit` of sixteen: eight bytes hold the low four bits of two, four bytes
/// the upper two of four.
fn q3_k_scale(bytes: &[u8], unit: usize) -> f32 {
    let low = bytes[unit % 8] >> (unit / 8 * 4) & 0x0f;
    let high = bytes[8 + unit % 4] >> (unit / 4 * 2) & 0x03;
    f32::from(low | high << 4) - 32.0
}

/// 32 bytes of third bits (bit `u` for the 32 elements of unit `u`), 64 bytes of bit pairs as in
/// Q2_K, twelve bytes of scales, f16 `d`.
pub(super) fn q3_k(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 108);
    for (k, out) in out.iter_mut().enumerate() {
        let low = bytes[32 + k / 128 * 32 + k % 32] >> (2 * (k / 32 % 4)) & 0x03;
        let high = bytes[k % 32] >> (k / 32) & 0x01;
        let code = f32::from(low | high << 2) - 4.0;
        *out = d * q3_k_scale(&bytes[96..108], k / 16) * code;
    }
}

/// Six-bit scale and minimum of unit `unit` from the 12 bytes that hold all eight.
fn k_scale_min(bytes: &[u8], unit: usize) -> (u8, u8) {
    if unit < 4 {
        return (bytes[unit] & 0x3f, bytes[unit + 4] & 0x3f);
    }
    let scale = bytes[unit + 4] & 0x0f | bytes[unit - 4] >> 6 << 4;
    let min = bytes[unit + 4] >> 4 | bytes[unit] >> 6 << 4;
    (scale, min)
}

pub(super) fn q4_k(bytes: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(bytes, 0), half_at(bytes, 2));
    for (k, out) in out.iter_mut().enumerate() {
        let unit = k / 32;
        let (scale, min) = k_scale_min(&bytes[4..16], unit);
        let code = bytes[16 + unit / 2 * 32 + k % 32] >> (unit % 2 * 4) & 0x0f;
        *out = d * f32::from(scale) * f32::from(code) - dmin * f32::from(min);
    }
}

pub(super) fn q5_k(bytes: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(bytes, 0), half_at(bytes, 2));
    for (k, out) in out.iter_mut().enumerate() {
        let unit = k / 32;
        let (scale, min) = k_scale_min(&bytes[4..16], unit);
        let low = bytes[48 + unit / 2 * 32 + k % 32] >> (unit % 2 * 4) & 0x0f;
        let code = low | (bytes[16 + k % 32] >> unit & 1) << 4;
        *out = d * f32::from(scale) * f32::from(code) - dmin * f32::from(min);
    }
}

pub(super) fn q6_k(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 208);
    for (k, out) in out.iter_mut().enumerate() {
        let (half, quarter, column) = (k / 128, k / 32 % 4, k % 32);
        let low = bytes[64 * half + 32 * (quarter % 2) + column] >> (quarter / 2 * 4) & 0x0f;
        let high = bytes[128 + 32 * half + column] >> (2 * quarter) & 0x03;
        let scale = bytes[192 + k / 16].cast_signed();
        *out = d * f32::from(scale) * (f32::from(low | high << 4) - 32.0);
    }
}
