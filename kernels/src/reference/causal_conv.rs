//! `y_t[ch] = silu(sum_m w[ch, m] x_(t - (kernel - 1 - m) * dilation)[ch])`.

use crate::cpu::ConvShape;

/// See `cpu::causal_conv`.
pub fn causal_conv(
    shape: ConvShape,
    x: &[f32],
    weight: &[f32],
    history: &mut [f32],
    out: &mut [f32],
) {
    let ConvShape { channels, kernel, dilation } = shape;
    // The history and what follows it.
    let rows = [&history[..], x].concat();
    for (index, out) in out.iter_mut().enumerate() {
        let (row, channel) = (index / channels, index % channels);
        let mut sum = 0.0_f64;
        for m in 0..kernel {
            let x = rows[(row + m * dilation) * channels + channel];
            sum += f64::from(weight[channel * kernel + m]) * f64::from(x);
        }
        #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
        let y = (sum / (1.0 + (-sum).exp())) as f32;
        *out = y;
    }
    history.copy_from_slice(&rows[rows.len() - history.len()..]);
}
