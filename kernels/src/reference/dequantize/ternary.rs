//! TQ1_0 and TQ2_0: elements of -1, 0, 1 with one scale per 256.

use super::half_at;

/// Digit `n` of a byte that holds a fraction of 256 in base three, the highest first.
fn trit(byte: u8, n: usize) -> f32 {
    let rest = byte.wrapping_mul([1, 3, 9, 27, 81][n]);
    f32::from((u16::from(rest) * 3 / 256) as u8) - 1.0
}

/// 32 bytes of five digits, digit `n` of byte `b` being element `32n + b`; likewise 16 bytes of
/// five and 4 bytes of four; f16 `d`.
pub(super) fn tq1_0(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 52);
    for (k, out) in out.iter_mut().enumerate() {
        let (byte, n) = match k {
            0..160 => (bytes[k % 32], k / 32),
            160..240 => (bytes[32 + k % 16], (k - 160) / 16),
            _ => (bytes[48 + k % 4], (k - 240) / 4),
        };
        *out = d * trit(byte, n);
    }
}

/// 64 bytes of bit pairs, 32 elements from each pair of 32 bytes; f16 `d`. 1 is zero.
pub(super) fn tq2_0(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 64);
    for (k, out) in out.iter_mut().enumerate() {
        let code = bytes[k / 128 * 32 + k % 32] >> (2 * (k / 32 % 4)) & 0x03;
        *out = d * (f32::from(code) - 1.0);
    }
}
