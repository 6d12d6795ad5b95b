//! What the bytes of a block mean, as floats.
//!
//! Source: `ggml-common.h` for the layouts, `ggml-quants.c` (`dequantize_row_*`) for the order of
//! operations; equal bit by bit to what gguf-py reads (`tests/fixtures/README.md`).

mod fp4;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod k;
mod legacy;
mod ternary;

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
        BlockFormat::Q8_0 => legacy::q8_0,
        BlockFormat::Q4_0 => legacy::q4_0,
        BlockFormat::Q4_1 => legacy::q4_1,
        BlockFormat::Q5_0 => legacy::q5_0,
        BlockFormat::Q5_1 => legacy::q5_1,
        BlockFormat::Q2_0 => legacy::q2_0,
        BlockFormat::Q2K => k::q2_k,
        BlockFormat::Q3K => k::q3_k,
        BlockFormat::Q4K => k::q4_k,
        BlockFormat::Q5K => k::q5_k,
        BlockFormat::Q6K => k::q6_k,
        BlockFormat::Iq1S => iq1::iq1_s,
        BlockFormat::Iq1M => iq1::iq1_m,
        BlockFormat::Iq2Xxs => iq2::iq2_xxs,
        BlockFormat::Iq2Xs => iq2::iq2_xs,
        BlockFormat::Iq2S => iq2::iq2_s,
        BlockFormat::Iq3Xxs => iq3::iq3_xxs,
        BlockFormat::Iq3S => iq3::iq3_s,
        BlockFormat::Iq4Nl => iq4::iq4_nl,
        BlockFormat::Iq4Xs => iq4::iq4_xs,
        BlockFormat::Mxfp4 => fp4::mxfp4,
        BlockFormat::Nvfp4 => fp4::nvfp4,
        BlockFormat::Tq1_0 => ternary::tq1_0,
        BlockFormat::Tq2_0 => ternary::tq2_0,
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

/// The little-endian word of two bytes at byte `at`.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The little-endian word of four bytes at byte `at`.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// -1 if bit `k` is set, else 1.
fn sign(bits: u8, k: usize) -> f32 {
    if bits >> k & 1 == 1 { -1.0 } else { 1.0 }
}

/// Nibble `k` of 16 bytes: the low ones first.
fn nibble(bytes: &[u8], k: usize) -> u8 {
    bytes[k % 16] >> (k / 16 * 4) & 0x0f
}
