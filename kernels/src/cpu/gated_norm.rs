//! `rms_norm` of each head, times a gate.

use super::exp::exp;
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::rms_norm::rms_norm;
use super::rows::for_row_ranges;
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// What is made of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `1 / (1 + e^-z)`: `qwen4exp`.
    Sigmoid,
    /// `z / (1 + e^-z)`: its relatives.
    Silu,
}

/// `out = x / rms(x) · weight · gate(z)`, over rows of `weight.len()`.
///
/// *Shapes*: `x`, `z`, `out` `(n, heads, width)`; `weight` `(width)`.
///
/// # Panics
/// When the shapes do not fit.
#[expect(clippy::too_many_arguments, reason = "an operation and its operands")]
pub fn gated_norm(
    pool: &Pool,
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    z: &[f32],
    gate: Gate,
    out: &mut [f32],
) {
    assert_eq!(z.len(), out.len(), "gated_norm: lengths differ");
    rms_norm(pool, isa, x, weight, eps, out);
    let n = out.len();
    let out = SharedMut::new(out);
    for_row_ranges(pool, n.div_ceil(LANES), LANES, &|rows| {
        let (start, end) = (rows.start * LANES, (rows.end * LANES).min(n));
        // SAFETY: the ranges are disjoint.
        let out = unsafe { out.part(start, end - start) };
        dispatch(isa, Gated { z: &z[start..end], gate, out });
    });
}

struct Gated<'a> {
    z: &'a [f32],
    gate: Gate,
    out: &'a mut [f32],
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for (z, out) in self.z.chunks(LANES).zip(self.out.chunks_mut(LANES)) {
            let z = lanes.load_part(z, 0.0);
            let e = exp(lanes, lanes.sub(lanes.splat(0.0), z));
            let above = match self.gate {
                Gate::Sigmoid => lanes.splat(1.0),
                Gate::Silu => z,
            };
            let gate = lanes.div(above, lanes.add(lanes.splat(1.0), e));
            lanes.store_part(lanes.mul(lanes.load_part(out, 0.0), gate), out);
        }
    }
}
