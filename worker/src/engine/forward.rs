//! One forward pass of a `llama` model, top to bottom, in the order of the model's diagram.
//!
//! ```text
//! tokens ─ embed ─┬─ rms_norm ─ q, k, v ─ rope ─ kv_append ─ attention ─ output ─ + ─┐
//!                 └──────────────────────────────────────────────────────────────────┤
//!                 ┌──────────────────────────────────────────────────────────────────┘
//!                 ├─ rms_norm ─ gate, up ─ swiglu ─ down ─ + ─► next layer
//!                 └────────────────────────────────────────┘
//! last layer ─ rms_norm ─ output matrix ─► logits
//! ```
//!
//! Rows of all parts go through every operation together. From the attention of the last layer on
//! only rows whose logits are wanted are computed; a chunk without any ends when its keys and
//! values are in the cache.

use std::ops::{ControlFlow, Range};

use super::{EngineError, SlotIndex};
use crate::backend::{Backend, Span};
use crate::kv_cache::KvCache;
use crate::model::llama::{Hyperparameters, Layer, Weights};

/// The rows of a pass, part after part.
#[derive(Debug, Default)]
pub(super) struct Pass {
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) spans: Vec<PassSpan>,
    /// Rows whose logits are wanted, rising.
    pub(super) wanted: Vec<usize>,
}

impl Pass {
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.spans.clear();
        self.wanted.clear();
    }
}

/// Where a part's rows lie in a pass.
#[derive(Debug, Clone)]
pub(super) struct PassSpan {
    pub(super) slot: SlotIndex,
    /// Position of the first row.
    pub(super) start: usize,
    pub(super) rows: Range<usize>,
    /// How many of its last rows have their logits wanted.
    pub(super) n_wanted: usize,
}

/// Activations of a pass, allocated once for the largest.
#[derive(Debug)]
pub(super) struct Scratch<B: Backend> {
    /// *Shapes*: `(n_tokens, d_model)`.
    residual: B::Rows,
    /// *Shapes*: `(n_tokens, d_model)`.
    normed: B::Rows,
    /// *Shapes*: `(n_tokens, d_model)`. What a block adds to the residual stream.
    update: B::Rows,
    /// *Shapes*: `(n_tokens, n_heads * head_dim)`.
    q: B::Rows,
    /// *Shapes*: `(n_tokens, n_kv_heads * head_dim)`.
    k: B::Rows,
    /// *Shapes*: `(n_tokens, n_kv_heads * head_dim)`.
    v: B::Rows,
    /// *Shapes*: `(n_tokens, n_heads * head_dim)`.
    attended: B::Rows,
    /// *Shapes*: `(n_tokens, d_ff)`.
    gate: B::Rows,
    /// *Shapes*: `(n_tokens, d_ff)`.
    up: B::Rows,
    /// *Shapes*: `(n_tokens, d_ff)`.
    hidden: B::Rows,
    operand: B::Operand,
    angles: B::Angles,
}

impl<B: Backend> Scratch<B> {
    pub(super) fn new(
        backend: &B,
        hyper: &Hyperparameters,
        n_tokens: usize,
    ) -> Result<Self, EngineError> {
        let rows = |width| backend.rows(n_tokens, width);
        Ok(Self {
            residual: rows(hyper.d_model)?,
            normed: rows(hyper.d_model)?,
            update: rows(hyper.d_model)?,
            q: rows(hyper.q_width())?,
            k: rows(hyper.kv_width())?,
            v: rows(hyper.kv_width())?,
            attended: rows(hyper.q_width())?,
            gate: rows(hyper.d_ff)?,
            up: rows(hyper.d_ff)?,
            hidden: rows(hyper.d_ff)?,
            operand: B::Operand::default(),
            angles: B::Angles::default(),
        })
    }
}

/// What a pass reads and writes besides its own rows.
#[derive(Debug)]
pub(super) struct Forward<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) weights: &'a Weights<B::Matrix, B::Vector>,
    pub(super) kv: &'a mut KvCache<B>,
    pub(super) scratch: &'a mut Scratch<B>,
}

impl<B: Backend> Forward<'_, B> {
    /// Computes the pass; `logits` gets the wanted rows. Breaks if `hook` does, which is called
    /// after every layer.
    pub(super) fn run(
        &mut self,
        pass: &Pass,
        logits: &mut B::Rows,
        hook: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (backend, weights) = (self.backend, self.weights);
        backend.embed(&weights.token_embd, &pass.tokens, &mut self.scratch.residual);
        backend.angles(&pass.positions, &mut self.scratch.angles);
        let last = weights.layers.len() - 1;
        for (index, layer) in weights.layers.iter().enumerate() {
            self.append_keys_and_values(layer, index, pass);
            if index < last {
                self.attend(layer, index, pass, false);
                self.feed_forward(layer);
            } else if !pass.wanted.is_empty() {
                self.attend(layer, index, pass, true);
                self.feed_forward(layer);
            }
            hook()?;
        }
        if !pass.wanted.is_empty() {
            self.logits(logits);
        }
        ControlFlow::Continue(())
    }

    /// Norm, queries, keys and values, rotation; keys and values go to the cache.
    fn append_keys_and_values(
        &mut self,
        layer: &Layer<B::Matrix, B::Vector>,
        index: usize,
        pass: &Pass,
    ) {
        let (backend, s) = (self.backend, &mut *self.scratch);
        backend.rms_norm(&s.residual, &layer.attn_norm, &mut s.normed);
        backend.load(&s.normed, &mut s.operand);
        backend.linear(&layer.attn_q, &mut s.operand, &mut s.q);
        backend.linear(&layer.attn_k, &mut s.operand, &mut s.k);
        backend.linear(&layer.attn_v, &mut s.operand, &mut s.v);
        backend.rope(&mut s.q, &s.angles);
        backend.rope(&mut s.k, &s.angles);
        for span in &pass.spans {
            let pages = self.kv.pages_mut(span.slot, index);
            backend.kv_append(pages, span.start, span.rows.clone(), &s.k, &s.v);
        }
    }

    /// Attention and its output matrix, added to the residual stream. With `only_wanted`, rows
    /// whose logits are not wanted are dropped here.
    fn attend(
        &mut self,
        layer: &Layer<B::Matrix, B::Vector>,
        index: usize,
        pass: &Pass,
        only_wanted: bool,
    ) {
        let (backend, s) = (self.backend, &mut *self.scratch);
        if only_wanted {
            backend.keep_rows(&mut s.q, &pass.wanted);
            backend.keep_rows(&mut s.residual, &pass.wanted);
        }
        let spans = pass.spans.iter().map(|span| {
            let n_rows = if only_wanted { span.n_wanted } else { span.rows.len() };
            let start = span.start + span.rows.len() - n_rows;
            Span { pages: self.kv.pages(span.slot, index), start, n_rows }
        });
        let spans: Vec<_> = spans.filter(|span| span.n_rows > 0).collect();
        backend.attention(&s.q, &spans, &mut s.attended);
        backend.load(&s.attended, &mut s.operand);
        backend.linear(&layer.attn_output, &mut s.operand, &mut s.update);
        backend.residual_add(&mut s.residual, &s.update);
    }

    /// The feed-forward block, added to the residual stream.
    fn feed_forward(&mut self, layer: &Layer<B::Matrix, B::Vector>) {
        let (backend, s) = (self.backend, &mut *self.scratch);
        backend.rms_norm(&s.residual, &layer.ffn_norm, &mut s.normed);
        backend.load(&s.normed, &mut s.operand);
        backend.linear(&layer.ffn_gate, &mut s.operand, &mut s.gate);
        backend.linear(&layer.ffn_up, &mut s.operand, &mut s.up);
        backend.swiglu(&s.gate, &s.up, &mut s.hidden);
        backend.load(&s.hidden, &mut s.operand);
        backend.linear(&layer.ffn_down, &mut s.operand, &mut s.update);
        backend.residual_add(&mut s.residual, &s.update);
    }

    /// The last norm and the output matrix.
    fn logits(&mut self, out: &mut B::Rows) {
        let (backend, weights, s) = (self.backend, self.weights, &mut *self.scratch);
        backend.rms_norm(&s.residual, &weights.output_norm, &mut s.normed);
        backend.load(&s.normed, &mut s.operand);
        match &weights.output {
            Some(output) => backend.linear(output, &mut s.operand, out),
            None => backend.matmul(&weights.token_embd, &mut s.operand, out),
        }
    }
}
