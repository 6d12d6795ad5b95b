//! Pairs turn by `position * scale * base^(-2i / n_rot) / factors[i]`.

use crate::cpu::RopePairs;

/// Turns one head at one position. See `cpu::rope`.
pub fn rope(
    pairs: RopePairs,
    head: &mut [f32],
    n_rot: usize,
    position: u32,
    base: f64,
    scale: f64,
    factors: Option<&[f32]>,
) {
    for pair in 0..n_rot / 2 {
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^53")]
        let exponent = -((2 * pair) as f64) / n_rot as f64;
        let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
        let angle = f64::from(position) * scale * base.powf(exponent) / factor;
        #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
        let (sine, cosine) = (angle.sin() as f32, angle.cos() as f32);
        let (first, second) = match pairs {
            RopePairs::Adjacent => (2 * pair, 2 * pair + 1),
            RopePairs::Halves => (pair, pair + n_rot / 2),
        };
        let (x, y) = (head[first], head[second]);
        head[first] = x * cosine - y * sine;
        head[second] = x * sine + y * cosine;
    }
}
