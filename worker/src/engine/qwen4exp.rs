//! One forward pass of a `qwen4exp` model, top to bottom, in the order of the model's diagram.
//!
//! ```text
//! tokens ─ embed ─ hyper_expand ─► R, n_streams wide
//!
//!   [one layer: n-gram rows ─ key, value ─ ple_gate ─ conv ─ R +]
//! ┌─ R ─ mix ─ x ─ attention or delta rule ─ y ─ R + inject·y ─┐
//! └─ R ─ mix ─ x ─ router, experts, shared ── y ─ R + inject·y ─┴─► next layer
//!
//! R ─ mix ─ output matrix ─► logits
//! ```
//!
//! Rows of all parts go through every operation together; what a sequence carries from pass to pass
//! (`state.rs`) is touched part by part. After the last layer's mixer only rows whose logits are
//! wanted go on.

mod experts;
mod mixers;
mod scratch;
mod state;

use std::ops::ControlFlow;

use self::scratch::Scratch;
use self::state::States;
use super::pass::Pass;
use super::{EngineError, EngineOptions, SlotIndex};
use crate::backend::Backend;
use crate::model::WeightFile;
use crate::model::qwen4exp::{self, Hyperparameters, Layer, LayerKind, Mix, Mixer, Ple, Weights};
use kernels::cpu::kv::Heads;
use kernels::cpu::{
    ConvShape, DeltaShape, IndexerShape, KeyHeads, NgramShape, Precision, RopePairs, RopeTable,
    ngram_rows,
};

type LayerOf<B> = Layer<<B as Backend>::Matrix, <B as Backend>::Experts, <B as Backend>::Vector>;
type MixOf<B> = Mix<<B as Backend>::Matrix, <B as Backend>::Vector>;
type WeightsOf<B> =
    Weights<<B as Backend>::Matrix, <B as Backend>::Experts, <B as Backend>::Vector>;

/// What the operations need to know of the model.
#[derive(Debug)]
struct Shapes {
    n_streams: usize,
    rms_eps: f32,
    heads: Heads,
    rope: RopeTable,
    delta: DeltaShape,
    conv: ConvShape,
    n_experts_used: usize,
    /// Of each layer that has one.
    indexers: Vec<Option<IndexerShape>>,
    ngram: Option<NgramShape>,
    ple_conv: Option<ConvShape>,
    precision: Precision,
}

impl Shapes {
    fn new(hyper: &Hyperparameters, options: &EngineOptions) -> Result<Self, EngineError> {
        let unusable = |error: &dyn std::error::Error| EngineError::Backend(error.to_string());
        let heads = Heads::new(hyper.n_heads, hyper.n_kv_heads, hyper.head_dim);
        let base = f64::from(hyper.rope_base);
        let rope = RopeTable::new(RopePairs::Halves, hyper.n_rot, base, 1.0, None);
        let (n_key_heads, n_value_heads) = (hyper.n_key_heads, hyper.n_value_heads);
        let delta =
            DeltaShape::new(n_key_heads, n_value_heads, hyper.linear_head_dim, KeyHeads::Tiled);
        let indexer = |kind: &LayerKind| match *kind {
            LayerKind::Full { compress_ratio } if compress_ratio > 0 => {
                let sizes = hyper.indexer;
                IndexerShape::new(sizes.n_heads, sizes.head_dim, compress_ratio, sizes.budget)
                    .map(Some)
            }
            _ => Ok(None),
        };
        let indexers: Result<Vec<_>, _> = hyper.layers.iter().map(indexer).collect();
        let ngram = hyper.ple.as_ref().map(|ple| {
            let (multipliers, n_rows) = (&ple.multipliers, ple.n_table_rows);
            let (heads, offsets, sizes) = (ple.heads_per_ngram, &ple.offsets, &ple.sizes);
            NgramShape::new(ple.order, heads, ple.eos, multipliers, offsets, sizes, n_rows)
        });
        Ok(Self {
            n_streams: hyper.n_streams,
            rms_eps: hyper.rms_eps,
            heads: heads.map_err(|error| unusable(&error))?,
            rope: rope.map_err(|error| unusable(&error))?,
            delta: delta.map_err(|error| unusable(&error))?,
            conv: ConvShape { channels: hyper.qkv_width(), kernel: hyper.conv_kernel, dilation: 1 },
            n_experts_used: hyper.n_experts_used,
            indexers: indexers.map_err(|error| unusable(&error))?,
            ngram: ngram.transpose().map_err(|error| unusable(&error))?,
            ple_conv: hyper.ple.as_ref().map(|ple| ConvShape {
                channels: hyper.wide(),
                kernel: ple.conv_kernel,
                dilation: ple.order,
            }),
            precision: options.numerics.precision(),
        })
    }
}

/// A `qwen4exp` model with the state of every slot.
#[derive(Debug)]
pub(super) struct Qwen4Exp<B: Backend> {
    weights: WeightsOf<B>,
    shapes: Shapes,
    states: States<B>,
    scratch: Scratch<B>,
}

impl<B: Backend> Qwen4Exp<B> {
    /// Takes the weights; `n_tokens` is the most rows of a pass.
    pub(super) fn open(
        backend: &B,
        file: &mut WeightFile,
        hyper: &Hyperparameters,
        options: &EngineOptions,
        n_tokens: usize,
    ) -> Result<Self, EngineError> {
        let weights = qwen4exp::weights::<B>(file, hyper)?;
        // Taken so that a file that is whole is not refused; drafting comes later.
        let _draft = qwen4exp::draft_inside::<B>(file, hyper)?;
        file.check_all_taken(qwen4exp::ARCH)?;
        let shapes = Shapes::new(hyper, options)?;
        let states = States::new(hyper, &shapes, options);
        let scratch = Scratch::new(backend, hyper, n_tokens)?;
        Ok(Self { weights, shapes, states, scratch })
    }

    /// Tokens of the slot.
    pub(super) fn length(&self, slot: SlotIndex) -> usize {
        self.states.length(slot)
    }

    /// Makes room for the slot's positions below `length`.
    pub(super) fn grow(
        &mut self,
        backend: &B,
        slot: SlotIndex,
        length: usize,
    ) -> Result<(), EngineError> {
        self.states.grow(backend, slot, length)
    }

    /// The positions below `length` have been computed.
    pub(super) fn set_length(&mut self, slot: SlotIndex, length: usize) {
        self.states.set_length(slot, length);
    }

    /// Empties the slot: the state of a shorter length is gone.
    pub(super) fn clear(&mut self, slot: SlotIndex) {
        self.states.clear(slot);
    }

    /// Computes a pass; `logits` gets the wanted rows. Breaks if `hook` does, which is called
    /// after every layer.
    pub(super) fn forward(
        &mut self,
        backend: &B,
        pass: &Pass,
        logits: &mut B::Rows,
        hook: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Self { weights, shapes, states, scratch } = self;
        let s = &mut *scratch;
        backend.embed(&weights.token_embd, &pass.tokens, &mut s.x);
        backend.hyper_expand(&s.x, shapes.n_streams, &mut s.residual);
        backend.angles(&shapes.rope, &pass.positions, &mut s.angles);
        states.begin(pass);
        let mut forward = Forward { backend, shapes, states, pass, s };
        let last = weights.layers.len() - 1;
        for (index, layer) in weights.layers.iter().enumerate() {
            if let (Some(ple), Some(table)) = (&layer.ple, &weights.ngram_table) {
                forward.ngrams(ple, table);
            }
            forward.mix(&layer.hc_attn);
            match &layer.mixer {
                Mixer::Full(mixer) => forward.full(mixer, index),
                Mixer::Linear(mixer) => forward.linear(mixer, index),
            }
            forward.add();
            if index == last {
                if pass.wanted.is_empty() {
                    return hook();
                }
                backend.keep_rows(&mut forward.s.residual, &pass.wanted);
            }
            forward.feed_forward(layer);
            hook()?;
        }
        forward.mix(&weights.head);
        backend.load(&forward.s.x, forward.shapes.precision, &mut forward.s.operand);
        let output = weights.output.as_ref().unwrap_or(&weights.token_embd);
        backend.matmul(output, &mut forward.s.operand, logits);
        ControlFlow::Continue(())
    }
}

/// What the layers read and write.
struct Forward<'a, B: Backend> {
    backend: &'a B,
    shapes: &'a Shapes,
    states: &'a mut States<B>,
    pass: &'a Pass,
    s: &'a mut Scratch<B>,
}

impl<B: Backend> Forward<'_, B> {
    /// What a block reads of the wide residual, into `x`; and how its result is to be added, into
    /// `inject`.
    fn mix(&mut self, mix: &MixOf<B>) {
        let (backend, s) = (self.backend, &mut *self.s);
        let Shapes { n_streams, rms_eps, precision, .. } = *self.shapes;
        backend.rms_norm_streams(&s.residual, &mix.norm, n_streams, rms_eps, &mut s.normed);
        backend.load(&s.normed, precision, &mut s.operand);
        backend.matmul(&mix.down, &mut s.operand, &mut s.low);
        if let Some(inject) = &mix.inject {
            backend.matmul(inject, &mut s.operand, &mut s.inject);
        }
        backend.hyper_silu(&mut s.low, n_streams);
        backend.load(&s.low, precision, &mut s.operand);
        backend.matmul(&mix.up, &mut s.operand, &mut s.wide);
        backend.hyper_mix(&s.normed, &s.wide, n_streams, &mut s.x);
    }

    /// Adds a block's result `y` to every stream.
    fn add(&mut self) {
        let s = &mut *self.s;
        self.backend.hyper_add(&mut s.residual, &s.y, &s.inject, self.shapes.n_streams);
    }

    /// The experts' block.
    fn feed_forward(&mut self, layer: &LayerOf<B>) {
        self.mix(&layer.hc_ffn);
        self.experts(&layer.moe);
        self.add();
    }

    /// Adds the n-gram embedding to the wide residual.
    fn ngrams(&mut self, ple: &Ple<B::Matrix, B::Vector>, table: &crate::model::MappedMatrix) {
        let (Some(ngram), Some(conv)) = (&self.shapes.ngram, self.shapes.ple_conv) else { return };
        let Shapes { n_streams, rms_eps, precision, .. } = *self.shapes;
        let (backend, s) = (self.backend, &mut *self.s);
        s.ngram_rows.clear();
        for span in &self.pass.spans {
            let tokens = &self.pass.tokens[span.rows.clone()];
            ngram_rows(ngram, self.states.tokens_before(span.slot), tokens, &mut s.span_rows);
            s.ngram_rows.extend_from_slice(&s.span_rows);
        }
        backend.embed_rows(table, &s.ngram_rows, ngram.n_heads(), &mut s.x);
        backend.load(&s.x, precision, &mut s.operand);
        backend.matmul(&ple.key, &mut s.operand, &mut s.wide);
        backend.matmul(&ple.value, &mut s.operand, &mut s.y);
        backend.rms_norm_streams(&s.wide, &ple.norm_key, n_streams, rms_eps, &mut s.normed);
        let extra = &mut s.extra;
        backend.rms_norm_streams(&s.residual, &ple.norm_query, n_streams, rms_eps, extra);
        backend.ple_gate(&s.normed, extra, &s.y, n_streams, &mut s.wide);
        backend.rms_norm_streams(&s.wide, &ple.norm_conv, n_streams, rms_eps, &mut s.normed);
        for span in &self.pass.spans {
            let history = self.states.ple_history(span.slot);
            let rows = span.rows.clone();
            backend.causal_conv(conv, &s.normed, rows, &ple.conv, history, extra);
        }
        backend.residual_add(&mut s.residual, &s.wide);
        backend.residual_add(&mut s.residual, extra);
    }
}
