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

use std::ops::ControlFlow;

use kernels::cpu::kv::Heads;
use kernels::cpu::{Precision, RopePairs, RopeTable};
use shared::ids::Position;

use super::pass::Pass;
use super::{EngineError, EngineOptions, SlotIndex};
use crate::backend::{Backend, Span};
use crate::kv_cache::KvCache;
use crate::model::WeightFile;
use crate::model::llama::{self, Hyperparameters, Layer, Weights};

/// Activations of a pass, allocated once for the largest.
#[derive(Debug)]
struct Scratch<B: Backend> {
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
    fn new(backend: &B, hyper: &Hyperparameters, n_tokens: usize) -> Result<Self, EngineError> {
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

/// A `llama` model with the KV cache of every slot.
#[derive(Debug)]
pub(super) struct Llama<B: Backend> {
    weights: Weights<B::Matrix, B::Vector>,
    heads: Heads,
    rms_eps: f32,
    rope: RopeTable,
    precision: Precision,
    kv: KvCache<B>,
    scratch: Scratch<B>,
}

impl<B: Backend> Llama<B> {
    /// Takes the weights; `n_tokens` is the most rows of a pass.
    pub(super) fn open(
        backend: &B,
        file: &mut WeightFile,
        hyper: &Hyperparameters,
        options: &EngineOptions,
        n_tokens: usize,
    ) -> Result<Self, EngineError> {
        let weights = llama::weights::<B>(file, hyper)?;
        let unusable = |error: &dyn std::error::Error| EngineError::Backend(error.to_string());
        let heads = Heads::new(hyper.n_heads, hyper.n_kv_heads, hyper.head_dim)
            .map_err(|error| unusable(&error))?;
        let (base, scale) = (f64::from(hyper.rope_base), f64::from(hyper.rope_scale));
        let factors = weights.rope_factors.as_deref();
        let rope = RopeTable::new(RopePairs::Adjacent, hyper.n_rot, base, scale, factors)
            .map_err(|error| unusable(&error))?;
        let format = options.numerics.kv_format();
        Ok(Self {
            weights,
            heads,
            rms_eps: hyper.rms_eps,
            rope,
            precision: options.numerics.precision(),
            kv: KvCache::new(options.slots as usize, hyper.n_layers, heads, format),
            scratch: Scratch::new(backend, hyper, n_tokens)?,
        })
    }

    /// Tokens of the slot.
    pub(super) fn length(&self, slot: SlotIndex) -> usize {
        self.kv.length(slot)
    }

    /// Makes room for the slot's positions below `length`.
    pub(super) fn grow(
        &mut self,
        backend: &B,
        slot: SlotIndex,
        length: usize,
    ) -> Result<(), EngineError> {
        self.kv.grow(backend, slot, length)
    }

    /// The positions below `length` have been computed.
    pub(super) fn set_length(&mut self, slot: SlotIndex, length: usize) {
        self.kv.set_length(slot, length);
    }

    /// Drops positions from `length` on.
    pub(super) fn truncate(&mut self, slot: SlotIndex, length: Position) {
        self.kv.truncate(slot, length);
    }

    /// Computes a pass; `logits` gets the wanted rows. Breaks if `hook` does.
    pub(super) fn forward(
        &mut self,
        backend: &B,
        pass: &Pass,
        logits: &mut B::Rows,
        hook: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Self { weights, heads, rms_eps, rope, precision, kv, scratch } = self;
        let (heads, rms_eps, precision) = (*heads, *rms_eps, *precision);
        let mut forward =
            Forward { backend, weights, heads, rms_eps, rope, precision, kv, scratch };
        forward.run(pass, logits, hook)
    }
}

/// What a pass reads and writes besides its own rows.
#[derive(Debug)]
struct Forward<'a, B: Backend> {
    backend: &'a B,
    weights: &'a Weights<B::Matrix, B::Vector>,
    heads: Heads,
    rms_eps: f32,
    rope: &'a RopeTable,
    precision: Precision,
    kv: &'a mut KvCache<B>,
    scratch: &'a mut Scratch<B>,
}

impl<B: Backend> Forward<'_, B> {
    /// Computes the pass; `logits` gets the wanted rows. Breaks if `hook` does, which is called
    /// after every layer.
    fn run(
        &mut self,
        pass: &Pass,
        logits: &mut B::Rows,
        hook: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (backend, weights) = (self.backend, self.weights);
        backend.embed(&weights.token_embd, &pass.tokens, &mut self.scratch.residual);
        backend.angles(self.rope, &pass.positions, &mut self.scratch.angles);
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
        backend.rms_norm(&s.residual, &layer.attn_norm, self.rms_eps, &mut s.normed);
        backend.load(&s.normed, self.precision, &mut s.operand);
        backend.linear(&layer.attn_q, &mut s.operand, &mut s.q);
        backend.linear(&layer.attn_k, &mut s.operand, &mut s.k);
        backend.linear(&layer.attn_v, &mut s.operand, &mut s.v);
        backend.rope(&mut s.q, self.heads.head_dim(), &s.angles);
        backend.rope(&mut s.k, self.heads.head_dim(), &s.angles);
        for span in &pass.spans {
            let pages = self.kv.pages_mut(span.slot, index);
            let rows = span.rows.clone();
            backend.kv_append(self.heads, pages, span.start, rows, &s.k, &s.v);
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
            Span { pages: self.kv.pages(span.slot, index), start, n_rows, selection: None }
        });
        let spans: Vec<_> = spans.filter(|span| span.n_rows > 0).collect();
        backend.attention(self.heads, &s.q, &spans, &mut s.attended);
        backend.load(&s.attended, self.precision, &mut s.operand);
        backend.linear(&layer.attn_output, &mut s.operand, &mut s.update);
        backend.residual_add(&mut s.residual, &s.update);
    }

    /// The feed-forward block, added to the residual stream.
    fn feed_forward(&mut self, layer: &Layer<B::Matrix, B::Vector>) {
        let (backend, s) = (self.backend, &mut *self.scratch);
        backend.rms_norm(&s.residual, &layer.ffn_norm, self.rms_eps, &mut s.normed);
        backend.load(&s.normed, self.precision, &mut s.operand);
        backend.linear(&layer.ffn_gate, &mut s.operand, &mut s.gate);
        backend.linear(&layer.ffn_up, &mut s.operand, &mut s.up);
        backend.swiglu(&s.gate, &s.up, &mut s.hidden);
        backend.load(&s.hidden, self.precision, &mut s.operand);
        backend.linear(&layer.ffn_down, &mut s.operand, &mut s.update);
        backend.residual_add(&mut s.residual, &s.update);
    }

    /// The last norm and the output matrix.
    fn logits(&mut self, out: &mut B::Rows) {
        let (backend, weights, s) = (self.backend, self.weights, &mut *self.scratch);
        backend.rms_norm(&s.residual, &weights.output_norm, self.rms_eps, &mut s.normed);
        backend.load(&s.normed, self.precision, &mut s.operand);
        match &weights.output {
            Some(output) => backend.linear(output, &mut s.operand, out),
            None => backend.matmul(&weights.token_embd, &mut s.operand, out),
        }
    }
}
