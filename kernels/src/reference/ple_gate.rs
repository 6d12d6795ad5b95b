//! The gate on an n-gram embedding, from the formulas of `cpu::ple_gate`.

/// See `cpu::ple_gate`.
pub fn ple_gate(
    key: &[f32],
    query: &[f32],
    value: &[f32],
    d_model: usize,
    n_streams: usize,
    out: &mut [f32],
) {
    for (index, out) in out.chunks_exact_mut(d_model).enumerate() {
        let range = index * d_model..(index + 1) * d_model;
        let mut dot = 0.0_f64;
        for (key, query) in key[range.clone()].iter().zip(&query[range]) {
            dot += f64::from(*key) * f64::from(*query);
        }
        #[expect(clippy::cast_precision_loss, reason = "a width is far below 2^53")]
        let likeness = dot / (d_model as f64).sqrt();
        let magnitude = if likeness.abs() < 1.0e-6 { 1.0e-6 } else { likeness.abs() };
        let sign = if likeness == 0.0 { 0.0 } else { likeness.signum() };
        let gate = 1.0 / (1.0 + (-sign * magnitude.sqrt()).exp());
        for (element, out) in out.iter_mut().enumerate() {
            #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
            let gate = gate as f32;
            *out = gate * value[index / n_streams * d_model + element];
        }
    }
}
