//! The gated delta rule position after position, in f64, from the formulas of `cpu::delta_rule`.

use crate::cpu::{DeltaInputs, DeltaShape};

/// See `cpu::delta_rule`.
pub fn delta_rule(shape: DeltaShape, inputs: &DeltaInputs<'_>, state: &mut [f32], out: &mut [f32]) {
    let s = shape.head_dim();
    let n_heads = shape.n_value_heads();
    for head in 0..n_heads {
        let state = &mut state[head * s * s..][..s * s];
        let mut exact: Vec<f64> = state.iter().map(|&x| f64::from(x)).collect();
        for (row, out) in out.chunks_exact_mut(shape.value_width()).enumerate() {
            let x = &inputs.qkv[row * shape.qkv_width()..][..shape.qkv_width()];
            let of_head = |first: usize, head: usize| -> Vec<f64> {
                let x = &x[(first + head) * s..][..s];
                x.iter().map(|&x| f64::from(x)).collect()
            };
            let key_head = shape.key_head(head);
            let q = unit(&of_head(0, key_head));
            let k = unit(&of_head(shape.n_key_heads(), key_head));
            let v = of_head(2 * shape.n_key_heads(), head);
            let at = row * n_heads + head;
            let softplus = softplus(f64::from(inputs.alpha[at]) + f64::from(inputs.dt[head]));
            let decay = (f64::from(inputs.a[head]) * softplus).exp();
            let rate = 1.0 / (1.0 + (-f64::from(inputs.beta[at])).exp());
            step(&mut exact, &k, &v, decay, rate);
            #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^53")]
            let scale = 1.0 / (s as f64).sqrt();
            for (column, out) in out[head * s..][..s].iter_mut().enumerate() {
                let dot: f64 = (0..s).map(|key| exact[key * s + column] * q[key]).sum();
                *out = rounded(dot * scale);
            }
        }
        for (state, &exact) in state.iter_mut().zip(&exact) {
            *state = rounded(exact);
        }
    }
}

/// The state after one position.
fn step(state: &mut [f64], k: &[f64], v: &[f64], decay: f64, rate: f64) {
    let s = k.len();
    for x in state.iter_mut() {
        *x *= decay;
    }
    for column in 0..s {
        let predicted: f64 = (0..s).map(|key| state[key * s + column] * k[key]).sum();
        let learnt = rate * (v[column] - predicted);
        for key in 0..s {
            state[key * s + column] += k[key] * learnt;
        }
    }
}

fn unit(x: &[f64]) -> Vec<f64> {
    let squares: f64 = x.iter().map(|x| x * x).sum();
    x.iter().map(|x| x / (squares + 1.0e-6).sqrt()).collect()
}

fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { (1.0 + x.exp()).ln() }
}

#[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
fn rounded(x: f64) -> f32 {
    x as f32
}
