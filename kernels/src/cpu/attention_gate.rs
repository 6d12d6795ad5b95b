//! The gate on the output of attention: queries and gates come out of one matrix, head by head, and
//! the output is multiplied by the gate's sigmoid.

use super::exp::sigmoid;
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::rows::{for_row_ranges, for_vectors};
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// Parts what is `[query | gate]` in each head into queries and gates.
///
/// # Shapes
///
/// `x`: `(n_tokens, n_heads, 2 * head_dim)`; `q` and `gate`: `(n_tokens, n_heads, head_dim)`.
///
/// # Panics
///
/// When the lengths do not fit those shapes.
pub fn split_heads(pool: &Pool, x: &[f32], head_dim: usize, q: &mut [f32], gate: &mut [f32]) {
    assert!(
        q.len() == gate.len() && x.len() == 2 * q.len() && (head_dim > 0 || x.is_empty()),
        "split_heads: {} elements into {} and {}",
        x.len(),
        q.len(),
        gate.len()
    );
    if x.is_empty() {
        return;
    }
    assert!(q.len().is_multiple_of(head_dim), "split_heads: {} / {head_dim}", q.len());
    let n_heads = q.len() / head_dim;
    let (q, gate) = (SharedMut::new(q), SharedMut::new(gate));
    for_row_ranges(pool, n_heads, 2 * head_dim, &|heads| {
        let (start, len) = (heads.start * head_dim, heads.len() * head_dim);
        // SAFETY: the ranges of heads are disjoint, in both.
        let (q, gate) = unsafe { (q.part(start, len), gate.part(start, len)) };
        let x = x[2 * start..][..2 * len].chunks_exact(2 * head_dim);
        let to = q.chunks_exact_mut(head_dim).zip(gate.chunks_exact_mut(head_dim));
        for (x, (q, gate)) in x.zip(to) {
            q.copy_from_slice(&x[..head_dim]);
            gate.copy_from_slice(&x[head_dim..]);
        }
    });
}

/// `x *= 1 / (1 + exp(-gate))`, per element.
///
/// # Shapes
///
/// Both of equal length, any shape.
///
/// # Panics
///
/// When the lengths differ.
pub fn sigmoid_mul(pool: &Pool, isa: Isa, x: &mut [f32], gate: &[f32]) {
    assert_eq!(x.len(), gate.len(), "sigmoid_mul: lengths differ");
    let x = SharedMut::new(x);
    for_vectors(pool, gate.len(), &|range| {
        // SAFETY: the ranges are disjoint.
        let x = unsafe { x.part(range.start, range.len()) };
        dispatch(isa, SigmoidMul { x, gate: &gate[range] });
    });
}

struct SigmoidMul<'a> {
    x: &'a mut [f32],
    gate: &'a [f32],
}

impl Kernel for SigmoidMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (x, x_rest) = self.x.as_chunks_mut::<LANES>();
        let (gate, gate_rest) = self.gate.as_chunks::<LANES>();
        for (x, gate) in x.iter_mut().zip(gate) {
            lanes.store(lanes.mul(lanes.load(x), sigmoid(lanes, lanes.load(gate))), x);
        }
        if !x_rest.is_empty() {
            let gate = sigmoid(lanes, lanes.load_part(gate_rest, 0.0));
            lanes.store_part(lanes.mul(lanes.load_part(x_rest, 0.0), gate), x_rest);
        }
    }
}
