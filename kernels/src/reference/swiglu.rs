//! `silu(gate) * up`.

/// See `cpu::swiglu`.
pub fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((gate, up), out) in gate.iter().zip(up).zip(out) {
        *out = gate / (1.0 + (-gate).exp()) * up;
    }
}
