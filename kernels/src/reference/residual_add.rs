//! `x += y`, and a bias onto every row.

/// See `cpu::residual_add`.
pub fn residual_add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// See `cpu::add_bias`.
pub fn add_bias(x: &mut [f32], bias: &[f32]) {
    for (index, x) in x.iter_mut().enumerate() {
        *x += bias[index % bias.len()];
    }
}
