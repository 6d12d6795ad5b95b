//! What the bytes of a block mean, as floats.
//!
//! Source: `ggml-common.h` for the layouts, `ggml-quants.c` (`dequantize_row_*`) for the order of
//! operations; equal bit by bit to what gguf-py reads (`tests/fixtures/README.md`).

use half::{bf16, f16};

use crate::format::BlockFormat;

/// Turns one row into floats.
///
/// *Shapes*: `bytes` are `out.len()` elements of `format`.
///
/// # Panics
/// When the lengths do not fit.
pub fn dequantize_row(format: BlockFormat, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(format.row_bytes(out.len()), Some(bytes.len()), "bytes of a {} row", format.name());
    let block = match format {
        BlockFormat::F32 => f32_element,
        BlockFormat::F16 => f16_element,
        BlockFormat::Bf16 => bf16_element,
        BlockFormat::Q8_0 => q8_0,
        BlockFormat::Q4_0 => q4_0,
        BlockFormat::Q4_1 => q4_1,
        BlockFormat::Q5_0 => q5_0,
        BlockFormat::Q5_1 => q5_1,
        BlockFormat::Q4K => q4_k,
        BlockFormat::Q5K => q5_k,
        BlockFormat::Q6K => q6_k,
    };
    let blocks = bytes.chunks_exact(format.block_bytes());
    for (bytes, out) in blocks.zip(out.chunks_exact_mut(format.block_len())) {
        block(bytes, out);
    }
}

/// The half-precision number at byte `at`.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn f32_element(bytes: &[u8], out: &mut [f32]) {
    out[0] = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
}

fn f16_element(bytes: &[u8], out: &mut [f32]) {
    out[0] = half_at(bytes, 0);
}

fn bf16_element(bytes: &[u8], out: &mut [f32]) {
    out[0] = bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
}

fn q8_0(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (out, code) in out.iter_mut().zip(&bytes[2..]) {
        *out = d * f32::from(code.cast_signed());
    }
}

/// Nibble `k` of 16 bytes: the low ones first.
fn nibble(bytes: &[u8], k: usize) -> u8 {
    bytes[k % 16] >> (k / 16 * 4) & 0x0f
}

/// Bit `k` of a little-endian word, as bit 4.
fn fifth_bit(word: &[u8], k: usize) -> u8 {
    (word[k / 8] >> (k % 8) & 1) << 4
}

fn q4_0(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (k, out) in out.iter_mut().enumerate() {
        *out = d * (f32::from(nibble(&bytes[2..], k)) - 8.0);
    }
}

fn q4_1(bytes: &[u8], out: &mut [f32]) {
    let (d, min) = (half_at(bytes, 0), half_at(bytes, 2));
    for (k, out) in out.iter_mut().enumerate() {
        *out = d * f32::from(nibble(&bytes[4..], k)) + min;
    }
}

fn q5_0(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (k, out) in out.iter_mut().enumerate() {
        let code = nibble(&bytes[6..], k) | fifth_bit(&bytes[2..6], k);
        *out = d * (f32::from(code) - 16.0);
    }
}

fn q5_1(bytes: &[u8], out: &mut [f32]) {
    let (d, min) = (half_at(bytes, 0), half_at(bytes, 2));
    for (k, out) in out.iter_mut().enumerate() {
        let code = nibble(&bytes[8..], k) | fifth_bit(&bytes[4..8], k);
        *out = d * f32::from(code) + min;
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

fn q4_k(bytes: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(bytes, 0), half_at(bytes, 2));
    for (k, out) in out.iter_mut().enumerate() {
        let unit = k / 32;
        let (scale, min) = k_scale_min(&bytes[4..16], unit);
        let code = bytes[16 + unit / 2 * 32 + k % 32] >> (unit % 2 * 4) & 0x0f;
        *out = d * f32::from(scale) * f32::from(code) - dmin * f32::from(min);
    }
}

fn q5_k(bytes: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(bytes, 0), half_at(bytes, 2));
    for (k, out) in out.iter_mut().enumerate() {
        let unit = k / 32;
        let (scale, min) = k_scale_min(&bytes[4..16], unit);
        let low = bytes[48 + unit / 2 * 32 + k % 32] >> (unit % 2 * 4) & 0x0f;
        let code = low | (bytes[16 + k % 32] >> unit & 1) << 4;
        *out = d * f32::from(scale) * f32::from(code) - dmin * f32::from(min);
    }
}

fn q6_k(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 208);
    for (k, out) in out.iter_mut().enumerate() {
        let (half, quarter, column) = (k / 128, k / 32 % 4, k % 32);
        let low = bytes[64 * half + 32 * (quarter % 2) + column] >> (quarter / 2 * 4) & 0x0f;
        let high = bytes[128 + 32 * half + column] >> (2 * quarter) & 0x03;
        let scale = bytes[192 + k / 16].cast_signed();
        *out = d * f32::from(scale) * (f32::from(low | high << 4) - 32.0);
    }
}
