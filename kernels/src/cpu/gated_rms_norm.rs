//! Root mean square normalisation of each head, times a gate: `rms(x; w) ⊙ sigmoid(gate)`, or with
//! silu.

use super::exp::{sigmoid, silu};
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::rms_norm::inverse_rms;
use super::rows::{for_row_ranges, load, store};
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// What a gate goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// `1 / (1 + exp(-gate))`.
    Sigmoid,
    /// `gate / (1 + exp(-gate))`.
    Silu,
}

/// Normalises each head of `x`, multiplies it by `weight`, which all heads share, and by its gate.
///
/// # Shapes
///
/// `x`, `gate` and `out`: `(n_tokens, n_heads, width)`; `weight`: `(width)`.
///
/// # Panics
///
/// When the lengths do not fit those shapes.
pub fn gated_rms_norm(
    pool: &Pool,
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    gate: &[f32],
    kind: Gate,
    out: &mut [f32],
) {
    let width = weight.len();
    assert!(x.len() == gate.len() && x.len() == out.len(), "gated_rms_norm: lengths differ");
    if x.is_empty() {
        return;
    }
    assert!(width > 0 && x.len().is_multiple_of(width), "gated_rms_norm: {} / {width}", x.len());
    let out = SharedMut::new(out);
    for_row_ranges(pool, x.len() / width, width, &|heads| {
        let (start, len) = (heads.start * width, heads.len() * width);
        // SAFETY: the ranges of heads are disjoint.
        let out = unsafe { out.part(start, len) };
        let (x, gate) = (&x[start..start + len], &gate[start..start + len]);
        dispatch(isa, GatedRmsNorm { x, weight, eps, gate, kind, out });
    });
}

struct GatedRmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    gate: &'a [f32],
    kind: Gate,
    out: &'a mut [f32],
}

impl Kernel for GatedRmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let width = self.weight.len();
        for (index, out) in self.out.chunks_exact_mut(width).enumerate() {
            let (x, gate) = (&self.x[index * width..][..width], &self.gate[index * width..]);
            let scale = lanes.splat(inverse_rms(lanes, x, self.eps));
            for (at, out) in out.chunks_mut(LANES).enumerate() {
                let place = at * LANES..at * LANES + out.len();
                let x = lanes.mul(load(lanes, &x[place.clone()]), scale);
                let x = lanes.mul(x, load(lanes, &self.weight[place.clone()]));
                let gate = load(lanes, &gate[place]);
                let gate = match self.kind {
                    Gate::Sigmoid => sigmoid(lanes, gate),
                    Gate::Silu => silu(lanes, gate),
                };
                store(lanes, lanes.mul(x, gate), out);
            }
        }
    }
}
