//! `y = x / sqrt(mean(x^2) + eps) * w`, per row.

/// See `cpu::rms_norm`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    if width == 0 {
        return;
    }
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let mut sum = 0.0_f32;
        for x in x {
            sum += x * x;
        }
        #[expect(clippy::cast_precision_loss, reason = "a width is far below 2^24")]
        let scale = 1.0 / (sum / width as f32 + eps).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * scale * weight;
        }
    }
}

/// See `cpu::rms_norm_streams`.
pub fn rms_norm_streams(x: &[f32], weight: &[f32], n_streams: usize, eps: f32, out: &mut [f32]) {
    let (width, stream_width) = (weight.len(), weight.len() / n_streams);
    if width == 0 {
        return;
    }
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        for start in (0..width).step_by(stream_width) {
            let range = start..start + stream_width;
            rms_norm(&x[range.clone()], &weight[range.clone()], eps, &mut out[range]);
        }
    }
}
