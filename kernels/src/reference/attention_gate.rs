//! The gate on the output of attention.

/// See `cpu::split_heads`.
pub fn split_heads(x: &[f32], head_dim: usize, q: &mut [f32], gate: &mut [f32]) {
    for head in 0..q.len().checked_div(head_dim).unwrap_or(0) {
        for element in 0..head_dim {
            q[head * head_dim + element] = x[2 * head * head_dim + element];
            gate[head * head_dim + element] = x[(2 * head + 1) * head_dim + element];
        }
    }
}

/// See `cpu::sigmoid_mul`.
pub fn sigmoid_mul(x: &mut [f32], gate: &[f32]) {
    for (x, gate) in x.iter_mut().zip(gate) {
        *x *= 1.0 / (1.0 + (-gate).exp());
    }
}
