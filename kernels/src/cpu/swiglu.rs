//! The gated activation of the feed-forward block: `silu(gate) * up`.

use super::exp::silu;
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::rows::for_vectors;
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// `out = gate / (1 + exp(-gate)) * up`, per element. A gate of -Inf gives NaN: nothing is hidden.
///
/// # Shapes
///
/// All three of equal length, any shape.
///
/// # Panics
///
/// When the lengths differ.
///
/// # Source
///
/// Shazeer, "GLU Variants Improve Transformer", 2020.
pub fn swiglu(pool: &Pool, isa: Isa, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == up.len() && gate.len() == out.len(), "swiglu: lengths differ");
    let n = gate.len();
    let out = SharedMut::new(out);
    for_vectors(pool, n, &|range| {
        // SAFETY: the ranges are disjoint.
        let out = unsafe { out.part(range.start, range.len()) };
        dispatch(isa, Swiglu { gate: &gate[range.clone()], up: &up[range], out });
    });
}

struct Swiglu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Swiglu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (gate, gate_rest) = self.gate.as_chunks::<LANES>();
        let (up, up_rest) = self.up.as_chunks::<LANES>();
        let (out, out_rest) = self.out.as_chunks_mut::<LANES>();
        for ((gate, up), out) in gate.iter().zip(up).zip(out) {
            lanes.store(gated(lanes, lanes.load(gate), lanes.load(up)), out);
        }
        if !gate_rest.is_empty() {
            let (gate, up) = (lanes.load_part(gate_rest, 0.0), lanes.load_part(up_rest, 0.0));
            lanes.store_part(gated(lanes, gate, up), out_rest);
        }
    }
}

#[inline(always)]
fn gated<L: Lanes>(lanes: L, gate: L::Float, up: L::Float) -> L::Float {
    lanes.mul(silu(lanes, gate), up)
}
