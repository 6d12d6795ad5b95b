//! The gated delta rule, in recurrent form.
//!
//! Per value head, with its state `S` (keys x values): `S = e^g S`, `d = beta (v - S^T k)`,
//! `S = S + k d^T`, `o = S^T q`, where `g = a softplus(alpha + dt)`, `beta` is a sigmoid, and `q`
//! and `k` are divided by the root of their squares' sum plus 1e-6, `q` also by the root of the
//! head's width.
//!
//! # Source
//!
//! Yang et al., "Gated Delta Networks", 2024.

use thiserror::Error;

use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// Added to the sum of squares of a query or key.
const L2_EPS: f32 = 1e-6;

/// Which key head serves a value head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyHeads {
    /// Value head `h` uses key head `h mod n_key_heads`: GGUF files of `qwen4exp`.
    Tiled,
    /// Value head `h` uses key head `h / (n_value_heads / n_key_heads)`: checkpoints.
    Grouped,
}

/// Heads that the kernel does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{n_value_heads} value heads of {head_dim} over {n_key_heads} key heads: heads must be \
     multiples of 16 wide, and value heads a multiple of key heads"
)]
pub struct DeltaShapeError {
    n_key_heads: usize,
    n_value_heads: usize,
    head_dim: usize,
}

/// Heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    n_key_heads: usize,
    n_value_heads: usize,
    head_dim: usize,
    key_heads: KeyHeads,
}

impl DeltaShape {
    /// Checks a model's numbers.
    ///
    /// # Errors
    ///
    /// [`DeltaShapeError`] if the kernel cannot compute such a layer.
    pub fn new(
        n_key_heads: usize,
        n_value_heads: usize,
        head_dim: usize,
        key_heads: KeyHeads,
    ) -> Result<Self, DeltaShapeError> {
        let is_good = n_key_heads > 0
            && n_value_heads > 0
            && n_value_heads.is_multiple_of(n_key_heads)
            && head_dim > 0
            && head_dim.is_multiple_of(LANES);
        match is_good {
            true => Ok(Self { n_key_heads, n_value_heads, head_dim, key_heads }),
            false => Err(DeltaShapeError { n_key_heads, n_value_heads, head_dim }),
        }
    }

    /// Width of queries, keys and values together.
    #[must_use]
    pub fn qkv_width(self) -> usize {
        (2 * self.n_key_heads + self.n_value_heads) * self.head_dim
    }

    /// Width of all value heads.
    #[must_use]
    pub fn value_width(self) -> usize {
        self.n_value_heads * self.head_dim
    }

    /// Elements of a layer's state.
    #[must_use]
    pub fn state_len(self) -> usize {
        self.value_width() * self.head_dim
    }

    fn key_head(self, value_head: usize) -> usize {
        match self.key_heads {
            KeyHeads::Tiled => value_head % self.n_key_heads,
            KeyHeads::Grouped => value_head / (self.n_value_heads / self.n_key_heads),
        }
    }
}

/// What a layer computes from its rows for the rule.
#[derive(Debug, Clone, Copy)]
pub struct DeltaInputs<'a> {
    /// Queries, keys, values, after the convolution. *Shapes*: `(n, qkv_width)`.
    pub qkv: &'a [f32],
    /// *Shapes*: `(n, n_value_heads)`.
    pub alpha: &'a [f32],
    /// Before the sigmoid. *Shapes*: `(n, n_value_heads)`.
    pub beta: &'a [f32],
    /// Negative. *Shapes*: `(n_value_heads)`.
    pub a: &'a [f32],
    /// *Shapes*: `(n_value_heads)`.
    pub dt: &'a [f32],
}

/// Takes the rows of one sequence in, in order.
///
/// *Shapes*: `state` `(n_value_heads, head_dim, head_dim)`, keys x values; `out`
/// `(n, n_value_heads * head_dim)`.
///
/// # Panics
/// When the shapes do not fit.
pub fn delta_rule(
    pool: &Pool,
    isa: Isa,
    shape: DeltaShape,
    inputs: &DeltaInputs<'_>,
    state: &mut [f32],
    out: &mut [f32],
) {
    let n_heads = shape.n_value_heads;
    let n_rows = out.len() / shape.value_width();
    assert_eq!(out.len(), n_rows * shape.value_width(), "rows of the result");
    assert_eq!(inputs.qkv.len(), n_rows * shape.qkv_width(), "rows of queries, keys and values");
    assert!(
        inputs.alpha.len() == n_rows * n_heads && inputs.beta.len() == inputs.alpha.len(),
        "rows of gates"
    );
    assert!(inputs.a.len() == n_heads && inputs.dt.len() == n_heads, "decays");
    assert_eq!(state.len(), shape.state_len(), "state");
    let (state, out) = (SharedMut::new(state), SharedMut::new(out));
    let head_len = shape.head_dim * shape.head_dim;
    pool.run(n_heads, &|head| {
        // SAFETY: each task has its own head.
        let state = unsafe { state.part(head * head_len, head_len) };
        let mut scratch = vec![0.0; 4 * shape.head_dim];
        dispatch(isa, Head { shape, inputs, head, n_rows, state, out, scratch: &mut scratch });
    });
}

struct Head<'a> {
    shape: DeltaShape,
    inputs: &'a DeltaInputs<'a>,
    head: usize,
    n_rows: usize,
    state: &'a mut [f32],
    out: SharedMut<'a, f32>,
    scratch: &'a mut [f32],
}

impl Kernel for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { shape, inputs, head, n_rows, state, out, scratch } = self;
        let DeltaShape { n_key_heads, n_value_heads, head_dim, .. } = shape;
        let key_head = shape.key_head(head);
        let (query, rest) = scratch.split_at_mut(head_dim);
        let (key, rest) = rest.split_at_mut(head_dim);
        let (change, _) = rest.split_at_mut(head_dim);
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
        let query_scale = 1.0 / (head_dim as f32).sqrt();
        for row in 0..n_rows {
            let qkv = &inputs.qkv[row * shape.qkv_width()..][..shape.qkv_width()];
            let at = |index: usize| &qkv[index * head_dim..][..head_dim];
            normalise(lanes, at(key_head), query_scale, query);
            normalise(lanes, at(n_key_heads + key_head), 1.0, key);
            let value = at(2 * n_key_heads + head);
            let gate = row * n_value_heads + head;
            let g = inputs.a[head] * softplus(inputs.alpha[gate] + inputs.dt[head]);
            let (decay, beta) = (g.exp(), 1.0 / (1.0 + (-inputs.beta[gate]).exp()));
            let start = row * shape.value_width() + head * head_dim;
            // SAFETY: no other task has this head.
            let out = unsafe { out.part(start, head_dim) };
            step(lanes, state, Step { query, key, value, decay, beta }, change, out);
        }
    }
}

struct Step<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: f32,
    beta: f32,
}

/// One row into one head's state.
#[inline(always)]
fn step<L: Lanes>(
    lanes: L,
    state: &mut [f32],
    step: Step<'_>,
    change: &mut [f32],
    out: &mut [f32],
) {
    let head_dim = out.len();
    let (decay, beta) = (lanes.splat(step.decay), lanes.splat(step.beta));
    let columns = head_dim / LANES;
    for column in 0..columns {
        let mut seen = lanes.splat(0.0);
        for (row, &key) in state.chunks_exact(head_dim).zip(step.key) {
            let s = lanes.mul(decay, lanes.load(&row.as_chunks::<LANES>().0[column]));
            seen = lanes.fma(lanes.splat(key), s, seen);
        }
        let value = lanes.load(&step.value.as_chunks::<LANES>().0[column]);
        let d = lanes.mul(beta, lanes.sub(value, seen));
        lanes.store(d, &mut change.as_chunks_mut::<LANES>().0[column]);
    }
    for column in 0..columns {
        let d = lanes.load(&change.as_chunks::<LANES>().0[column]);
        let mut o = lanes.splat(0.0);
        let pairs = step.key.iter().zip(step.query);
        for (row, (&key, &query)) in state.chunks_exact_mut(head_dim).zip(pairs) {
            let cell = &mut row.as_chunks_mut::<LANES>().0[column];
            let s = lanes.fma(lanes.splat(key), d, lanes.mul(decay, lanes.load(cell)));
            lanes.store(s, cell);
            o = lanes.fma(lanes.splat(query), s, o);
        }
        lanes.store(o, &mut out.as_chunks_mut::<LANES>().0[column]);
    }
}

/// `x / sqrt(Σ x² + eps) · scale`.
#[inline(always)]
fn normalise<L: Lanes>(lanes: L, x: &[f32], scale: f32, out: &mut [f32]) {
    let mut sum = lanes.splat(0.0);
    for chunk in x.as_chunks::<LANES>().0 {
        let v = lanes.load(chunk);
        sum = lanes.fma(v, v, sum);
    }
    let factor = lanes.splat(scale / (lanes.sum(sum) + L2_EPS).sqrt());
    for (x, out) in x.as_chunks::<LANES>().0.iter().zip(out.as_chunks_mut::<LANES>().0) {
        lanes.store(lanes.mul(lanes.load(x), factor), out);
    }
}

/// `ln(1 + e^x)`, which is `x` where `e^x` swallows the 1.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
