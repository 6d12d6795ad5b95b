//! Hyper-connections, from the formulas of `cpu::hyper`.

#[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
fn sigmoid(x: f64) -> f32 {
    (1.0 / (1.0 + (-x).exp())) as f32
}

#[expect(clippy::cast_precision_loss, reason = "there are a handful of streams")]
fn count(n_streams: usize) -> f32 {
    n_streams as f32
}

/// See `cpu::hyper_expand`.
pub fn hyper_expand(x: &[f32], d_model: usize, n_streams: usize, out: &mut [f32]) {
    for (index, out) in out.iter_mut().enumerate() {
        let row = index / (n_streams * d_model);
        *out = x[row * d_model + index % d_model];
    }
}

/// See `cpu::hyper_silu`.
pub fn hyper_silu(x: &mut [f32], n_streams: usize) {
    for x in x {
        let quotient = *x / count(n_streams);
        *x = quotient / (1.0 + (-quotient).exp());
    }
}

/// See `cpu::hyper_mix`.
pub fn hyper_mix(normed: &[f32], gamma: &[f32], d_model: usize, n_streams: usize, out: &mut [f32]) {
    for (index, out) in out.iter_mut().enumerate() {
        let (row, element) = (index / d_model, index % d_model);
        let mut sum = 0.0;
        for stream in 0..n_streams {
            let at = (row * n_streams + stream) * d_model + element;
            sum += sigmoid(f64::from(gamma[at])) * normed[at];
        }
        *out = sum / count(n_streams);
    }
}

/// See `cpu::hyper_add`.
pub fn hyper_add(residual: &mut [f32], y: &[f32], inject: &[f32], n_streams: usize) {
    let Some(d_model) = residual.len().checked_div(inject.len()) else { return };
    for (index, residual) in residual.iter_mut().enumerate() {
        let (stream, element) = (index / d_model, index % d_model);
        let weight = 2.0 * sigmoid(f64::from(inject[stream] / count(n_streams)));
        *residual += weight * y[stream / n_streams * d_model + element];
    }
}
