//! What attention remembers of each query row from page to page.

use crate::cpu::lanes::{Chunk, LANES, Lanes};

/// Query rows with their running softmax.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) head_dim: usize,
    /// `(n, head_dim)`, multiplied by the scale.
    pub(super) queries: Vec<f32>,
    /// `(n, head_dim)`: sums of values, weighted relative to `greatest`.
    pub(super) outputs: Vec<Chunk>,
    /// `(n)`: sums of the weights, per lane of the keys' tiles.
    pub(super) sums: Vec<Chunk>,
    /// `(n)`: the greatest score so far.
    pub(super) greatest: Vec<f32>,
}

impl Rows {
    /// No rows.
    pub(super) const fn new() -> Self {
        Self {
            head_dim: 0,
            queries: Vec::new(),
            outputs: Vec::new(),
            sums: Vec::new(),
            greatest: Vec::new(),
        }
    }

    /// Chunks in a row of `outputs`.
    #[inline(always)]
    pub(super) fn row_chunks(&self) -> usize {
        self.head_dim / LANES
    }

    /// Starts `n` rows anew. Their queries must be loaded next.
    pub(super) fn reset(&mut self, n: usize, head_dim: usize) {
        self.head_dim = head_dim;
        self.queries.resize(n * head_dim, 0.0);
        self.outputs.clear();
        self.outputs.resize(n * head_dim / LANES, Chunk::ZERO);
        self.sums.clear();
        self.sums.resize(n, Chunk::ZERO);
        self.greatest.clear();
        self.greatest.resize(n, f32::NEG_INFINITY);
    }

    /// Sets the queries of rows from `first` on.
    #[inline(always)]
    pub(super) fn load_queries<L: Lanes>(&mut self, lanes: L, first: usize, q: &[f32], scale: f32) {
        let scale = lanes.splat(scale);
        let to = &mut self.queries[first * self.head_dim..][..q.len()];
        for (q, to) in q.as_chunks::<LANES>().0.iter().zip(to.as_chunks_mut::<LANES>().0) {
            lanes.store(lanes.mul(lanes.load(q), scale), to);
        }
    }

    /// Divides a row's output by its sum of weights.
    #[inline(always)]
    pub(super) fn finish<L: Lanes>(&self, lanes: L, row: usize, out: &mut [f32]) {
        let inverse = lanes.splat(1.0 / lanes.sum(lanes.load(&self.sums[row].0)));
        let outputs = &self.outputs[row * self.row_chunks()..][..self.row_chunks()];
        for (chunk, out) in outputs.iter().zip(out.as_chunks_mut::<LANES>().0) {
            lanes.store(lanes.mul(lanes.load(&chunk.0), inverse), out);
        }
    }
}
