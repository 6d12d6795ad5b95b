//! `x / sqrt(mean(x^2) + eps) * w * sigmoid(gate)` per head, or with silu.

use super::rms_norm::rms_norm;
use crate::cpu::Gate;

/// See `cpu::gated_rms_norm`.
pub fn gated_rms_norm(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    gate: &[f32],
    kind: Gate,
    out: &mut [f32],
) {
    rms_norm(x, weight, eps, out);
    for (out, gate) in out.iter_mut().zip(gate) {
        *out *= match kind {
            Gate::Sigmoid => 1.0 / (1.0 + (-gate).exp()),
            Gate::Silu => gate / (1.0 + (-gate).exp()),
        };
    }
}
