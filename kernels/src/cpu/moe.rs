//! A mixture of experts: which experts a row uses, their products, and their weighted sum.
//!
//! *Order-stable.* The rows of one expert are multiplied together, and a row's bits in `matmul` do
//! not depend on how many those are.

use std::cell::RefCell;

use super::activations::Activations;
use super::exp::exp;
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::matmul::{Precision, matmul};
use super::pool::Pool;
use super::rows::for_row_ranges;
use super::shared_mut::SharedMut;
use crate::isa::Isa;
use crate::tensor::ExpertsView;

pub use crate::reference::moe::{Routing, route};

thread_local! {
    /// The rows of one expert and their results. Grows to the largest size seen and stays.
    static SCRATCH: RefCell<(Activations, Vec<f32>, Vec<f32>)> =
        RefCell::new((Activations::new(), Vec::new(), Vec::new()));
}

/// The product of each row with the matrices of its experts.
///
/// *Shapes*: `w` `(n_experts, n_out, n_in)`; `x` `(n, n_in)`, each row for all its experts, or
/// `(n * n_used, n_in)`, a row for each; `y` `(n * n_used, n_out)`.
///
/// # Panics
/// When the shapes do not fit, or an expert is not one of `w`.
pub fn expert_matmul(
    pool: &Pool,
    isa: Isa,
    precision: Precision,
    w: &ExpertsView<'_>,
    routing: &Routing,
    x: &Activations,
    y: &mut [f32],
) {
    let (n_used, n_pairs) = (routing.n_used(), routing.experts().len());
    let (n_in, n_out) = (w.cols(), w.rows());
    assert_eq!(x.width(), n_in, "width of the activations");
    assert_eq!(y.len(), n_pairs * n_out, "length of the result");
    let is_shared = x.n_tokens() == routing.n_rows();
    assert!(is_shared || x.n_tokens() == n_pairs, "rows of the activations");
    SCRATCH.with_borrow_mut(|(rows, gathered, out)| {
        for (expert, pairs) in routing.groups() {
            gathered.clear();
            for &pair in pairs {
                let pair = pair as usize;
                let row = if is_shared { pair / n_used } else { pair };
                gathered.extend_from_slice(&x.rows()[row * n_in..][..n_in]);
            }
            rows.load(pool, gathered, pairs.len(), n_in);
            out.resize(pairs.len() * n_out, 0.0);
            matmul(pool, isa, precision, &w.expert(expert), rows, out);
            for (&pair, out) in pairs.iter().zip(out.chunks_exact(n_out)) {
                y[pair as usize * n_out..][..n_out].copy_from_slice(out);
            }
        }
    });
}

/// `y = Σ weight · expert + sigmoid(gate) · shared` per row, experts in order of rank.
///
/// *Shapes*: `experts` `(n * n_used, width)`; `shared`, `y` `(n, width)`; `gate` `(n)`.
///
/// # Panics
/// When the shapes do not fit.
pub fn moe_combine(
    pool: &Pool,
    isa: Isa,
    routing: &Routing,
    experts: &[f32],
    shared: &[f32],
    gate: &[f32],
    y: &mut [f32],
) {
    let n_rows = routing.n_rows();
    if n_rows == 0 {
        return;
    }
    let width = y.len() / n_rows;
    assert!(
        y.len() == n_rows * width
            && shared.len() == y.len()
            && gate.len() == n_rows
            && experts.len() == routing.experts().len() * width,
        "moe_combine: {} of {n_rows} rows",
        y.len()
    );
    let y = SharedMut::new(y);
    for_row_ranges(pool, n_rows, width, &|rows| {
        for row in rows {
            // SAFETY: the ranges of rows are disjoint.
            let y = unsafe { y.part(row * width, width) };
            let n_used = routing.n_used();
            let weights = &routing.weights()[row * n_used..][..n_used];
            let experts = &experts[row * n_used * width..][..n_used * width];
            let shared = &shared[row * width..][..width];
            dispatch(isa, Combine { weights, experts, shared, gate: gate[row], y });
        }
    });
}

struct Combine<'a> {
    weights: &'a [f32],
    experts: &'a [f32],
    shared: &'a [f32],
    gate: f32,
    y: &'a mut [f32],
}

impl Kernel for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let one = lanes.splat(1.0);
        let gate = lanes.splat(-self.gate);
        let gate = lanes.div(one, lanes.add(one, exp(lanes, gate)));
        let width = self.y.len();
        for start in (0..width).step_by(LANES) {
            let end = (start + LANES).min(width);
            let mut sum = lanes.splat(0.0);
            for (&weight, expert) in self.weights.iter().zip(self.experts.chunks_exact(width)) {
                let expert = lanes.load_part(&expert[start..end], 0.0);
                sum = lanes.fma(lanes.splat(weight), expert, sum);
            }
            let shared = lanes.load_part(&self.shared[start..end], 0.0);
            sum = lanes.fma(gate, shared, sum);
            lanes.store_part(sum, &mut self.y[start..end]);
        }
    }
}
