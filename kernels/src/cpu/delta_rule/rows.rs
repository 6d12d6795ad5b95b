//! What all columns of a head need of a few rows: keys and queries at their lengths, gates.

use std::ops::Range;

use super::shape::{DeltaInputs, DeltaShape};
use crate::cpu::lanes::{LANES, Lanes};

/// Added to the sum of squares: a key of zeros stays one.
const NORM_EPS: f32 = 1.0e-6;

/// Above this, `softplus(x)` is `x` in f32, and `exp(x)` on its way out of range.
const SOFTPLUS_LINEAR: f64 = 20.0;

/// Rows of one head.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) head_dim: usize,
    /// `(n, head_dim)`, of length 1.
    pub(super) keys: Vec<f32>,
    /// `(n, head_dim)`, of length `1 / sqrt(head_dim)`.
    pub(super) queries: Vec<f32>,
    /// `(n)`: the dot of key and query.
    pub(super) likeness: Vec<f32>,
    /// `(n)`: `e^g`, what is left of the state.
    pub(super) decay: Vec<f32>,
    /// `(n)`: how much is learnt.
    pub(super) rate: Vec<f32>,
}

impl Rows {
    /// None.
    pub(super) const fn new() -> Self {
        Self {
            head_dim: 0,
            keys: Vec::new(),
            queries: Vec::new(),
            likeness: Vec::new(),
            decay: Vec::new(),
            rate: Vec::new(),
        }
    }

    /// How many there are.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.decay.len()
    }

    /// The key of a row.
    #[inline(always)]
    pub(super) fn key(&self, row: usize) -> &[f32] {
        &self.keys[row * self.head_dim..][..self.head_dim]
    }

    /// The query of a row.
    #[inline(always)]
    pub(super) fn query(&self, row: usize) -> &[f32] {
        &self.queries[row * self.head_dim..][..self.head_dim]
    }

    /// Starts anew with the gates of some rows, computed in f64. Their keys must be loaded next.
    pub(super) fn load_gates(
        &mut self,
        shape: &DeltaShape,
        inputs: &DeltaInputs<'_>,
        head: usize,
        rows: Range<usize>,
    ) {
        self.head_dim = shape.head_dim();
        self.keys.resize(rows.len() * shape.head_dim(), 0.0);
        self.queries.resize(rows.len() * shape.head_dim(), 0.0);
        self.likeness.resize(rows.len(), 0.0);
        self.decay.clear();
        self.rate.clear();
        let (a, dt) = (f64::from(inputs.a[head]), f64::from(inputs.dt[head]));
        for row in rows {
            let at = row * shape.n_value_heads() + head;
            let decay = (a * softplus(f64::from(inputs.alpha[at]) + dt)).exp();
            let rate = 1.0 / (1.0 + (-f64::from(inputs.beta[at])).exp());
            #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
            let (decay, rate) = (decay as f32, rate as f32);
            self.decay.push(decay);
            self.rate.push(rate);
        }
    }

    /// Loads the keys and queries of the rows from `first` on.
    #[inline(always)]
    pub(super) fn load_keys<L: Lanes>(
        &mut self,
        lanes: L,
        shape: &DeltaShape,
        inputs: &DeltaInputs<'_>,
        head: usize,
        first: usize,
    ) {
        let s = shape.head_dim();
        let key_head = shape.key_head(head);
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
        let query_scale = 1.0 / (s as f32).sqrt();
        for index in 0..self.len() {
            let row = &inputs.qkv[(first + index) * shape.qkv_width()..][..shape.qkv_width()];
            let query = &row[key_head * s..][..s];
            let key = &row[(shape.n_key_heads() + key_head) * s..][..s];
            let place = index * s..(index + 1) * s;
            let (keys, queries) = (&mut self.keys[place.clone()], &mut self.queries[place]);
            set_length(lanes, key, 1.0, keys);
            set_length(lanes, query, query_scale, queries);
            self.likeness[index] = dot(lanes, keys, queries);
        }
    }
}

/// `ln(1 + e^x)`; NaN at NaN.
fn softplus(x: f64) -> f64 {
    if x > SOFTPLUS_LINEAR { x } else { x.exp().ln_1p() }
}

/// `x / sqrt(sum(x^2) + eps) * length`.
#[inline(always)]
fn set_length<L: Lanes>(lanes: L, x: &[f32], length: f32, out: &mut [f32]) {
    let scale = lanes.splat(length / (dot(lanes, x, x) + NORM_EPS).sqrt());
    for (x, out) in x.as_chunks::<LANES>().0.iter().zip(out.as_chunks_mut().0) {
        lanes.store(lanes.mul(lanes.load(x), scale), out);
    }
}

/// The sum of products of whole vectors.
#[inline(always)]
fn dot<L: Lanes>(lanes: L, a: &[f32], b: &[f32]) -> f32 {
    let mut sum = lanes.splat(0.0);
    for (a, b) in a.as_chunks::<LANES>().0.iter().zip(b.as_chunks().0) {
        sum = lanes.fma(lanes.load(a), lanes.load(b), sum);
    }
    lanes.sum(sum)
}
