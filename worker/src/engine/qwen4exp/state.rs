//! What a sequence carries from pass to pass.
//!
//! Keys, values and indexer keys grow with use and can be cut anywhere near the end. The delta
//! rule's state and the convolutions' histories are those of one length only: a sequence is cut to
//! nothing, or not at all.

use shared::ids::Position;

use super::Shapes;
use crate::backend::Backend;
use crate::engine::pass::Pass;
use crate::engine::{EngineError, EngineOptions, SlotIndex};
use crate::kv_cache::KvCache;
use crate::model::qwen4exp::{Hyperparameters, LayerKind};

/// The states of all slots.
#[derive(Debug)]
pub(super) struct States<B: Backend> {
    kv: KvCache<B>,
    /// Of each layer, its number among those with keys and values.
    kv_index: Vec<usize>,
    sizes: Sizes,
    slots: Vec<Slot<B>>,
}

/// Of what a slot's state is made.
#[derive(Debug)]
struct Sizes {
    indexers: Vec<Option<kernels::cpu::IndexerShape>>,
    is_linear: Vec<bool>,
    delta_len: usize,
    history_len: usize,
    ple_history_len: Option<usize>,
    /// Tokens before the next, and what stands for those before the first.
    n_tokens_before: usize,
    eos: u32,
}

/// One sequence. Empty, it holds nothing.
#[derive(Debug)]
struct Slot<B: Backend> {
    /// Of each layer that has one.
    indexers: Vec<Option<B::IndexerKeys>>,
    linear: Vec<Option<LinearState<B>>>,
    ple_history: Option<B::State>,
    /// The last tokens, oldest first.
    tokens: Vec<u32>,
    /// As they will be when the pass under way has ended.
    tokens_after: Vec<u32>,
}

impl<B: Backend> Slot<B> {
    fn empty() -> Self {
        Self {
            indexers: Vec::new(),
            linear: Vec::new(),
            ple_history: None,
            tokens: Vec::new(),
            tokens_after: Vec::new(),
        }
    }
}

/// What a layer of the delta rule remembers.
#[derive(Debug)]
pub(super) struct LinearState<B: Backend> {
    /// *Shapes*: `(n_value_heads, head_dim, head_dim)`, keys x values.
    pub(super) delta: B::State,
    /// *Shapes*: `(conv_kernel - 1, qkv_width)`.
    pub(super) history: B::State,
}

impl<B: Backend> States<B> {
    /// Of empty slots.
    pub(super) fn new(hyper: &Hyperparameters, shapes: &Shapes, options: &EngineOptions) -> Self {
        let is_linear: Vec<_> =
            hyper.layers.iter().map(|kind| *kind == LayerKind::Linear).collect();
        let mut n_full = 0;
        let mut kv_index = Vec::new();
        for is_linear in &is_linear {
            kv_index.push(n_full);
            n_full += usize::from(!is_linear);
        }
        let n_slots = options.slots as usize;
        let history = |conv: kernels::cpu::ConvShape| conv.history_rows() * conv.channels;
        Self {
            kv: KvCache::new(n_slots, n_full, shapes.heads, options.numerics.kv_format()),
            kv_index,
            sizes: Sizes {
                indexers: shapes.indexers.clone(),
                is_linear,
                delta_len: shapes.delta.state_len(),
                history_len: history(shapes.conv),
                ple_history_len: shapes.ple_conv.map(history),
                n_tokens_before: shapes.ngram.as_ref().map_or(0, |ngram| ngram.order() - 1),
                eos: shapes.ngram.as_ref().map_or(0, kernels::cpu::NgramShape::eos),
            },
            slots: (0..n_slots).map(|_| Slot::empty()).collect(),
        }
    }

    /// Tokens of the slot.
    pub(super) fn length(&self, slot: SlotIndex) -> usize {
        self.kv.length(slot)
    }

    /// Makes room for positions below `length`.
    pub(super) fn grow(
        &mut self,
        backend: &B,
        slot: SlotIndex,
        length: usize,
    ) -> Result<(), EngineError> {
        self.kv.grow(backend, slot, length)?;
        let (sizes, slot) = (&self.sizes, &mut self.slots[slot.0 as usize]);
        if !slot.linear.is_empty() {
            return Ok(());
        }
        let mut linear = Vec::with_capacity(sizes.is_linear.len());
        for &is_linear in &sizes.is_linear {
            linear.push(match is_linear {
                false => None,
                true => Some(LinearState {
                    delta: backend.state(sizes.delta_len)?,
                    history: backend.state(sizes.history_len)?,
                }),
            });
        }
        let ple_history = sizes.ple_history_len.map(|len| backend.state(len)).transpose()?;
        let keys = |shape: &Option<_>| shape.map(|shape| backend.indexer_keys(shape));
        let tokens = vec![sizes.eos; sizes.n_tokens_before];
        let tokens_after = tokens.clone();
        let indexers = sizes.indexers.iter().map(keys).collect();
        *slot = Slot { indexers, linear, ple_history, tokens, tokens_after };
        Ok(())
    }

    /// A pass over these tokens begins.
    pub(super) fn begin(&mut self, pass: &Pass) {
        for span in &pass.spans {
            let slot = &mut self.slots[span.slot.0 as usize];
            let n = slot.tokens.len();
            let mut all = slot.tokens.clone();
            all.extend_from_slice(&pass.tokens[span.rows.clone()]);
            slot.tokens_after = all.split_off(all.len() - n);
        }
    }

    /// The positions below `length` have been computed.
    pub(super) fn set_length(&mut self, slot: SlotIndex, length: usize) {
        self.kv.set_length(slot, length);
        let slot = &mut self.slots[slot.0 as usize];
        slot.tokens.clone_from(&slot.tokens_after);
    }

    /// Empties the slot. Wherever it is to be cut, the states of that length are not kept
    /// anywhere; and a pass that failed has changed them.
    pub(super) fn clear(&mut self, slot: SlotIndex) {
        self.kv.truncate(slot, Position(0));
        self.slots[slot.0 as usize] = Slot::empty();
    }

    /// The pages of a layer.
    pub(super) fn pages(&self, slot: SlotIndex, layer: usize) -> &[B::Page] {
        self.kv.pages(slot, self.kv_index[layer])
    }

    /// The pages of a layer, to append to.
    pub(super) fn pages_mut(&mut self, slot: SlotIndex, layer: usize) -> &mut [B::Page] {
        self.kv.pages_mut(slot, self.kv_index[layer])
    }

    /// The state of a layer of the delta rule.
    ///
    /// # Panics
    ///
    /// If the layer is another, or the slot was not grown.
    pub(super) fn linear_mut(&mut self, slot: SlotIndex, layer: usize) -> &mut LinearState<B> {
        self.slots[slot.0 as usize].linear[layer].as_mut().expect("a layer of the delta rule")
    }

    /// The indexer's keys of a layer.
    ///
    /// # Panics
    ///
    /// If the layer has none, or the slot was not grown.
    pub(super) fn indexer_mut(&mut self, slot: SlotIndex, layer: usize) -> &mut B::IndexerKeys {
        self.slots[slot.0 as usize].indexers[layer].as_mut().expect("a layer with an indexer")
    }

    /// What the n-gram embedding's convolution remembers.
    ///
    /// # Panics
    ///
    /// If the model has none, or the slot was not grown.
    pub(super) fn ple_history(&mut self, slot: SlotIndex) -> &mut B::State {
        self.slots[slot.0 as usize].ple_history.as_mut().expect("an n-gram embedding")
    }

    /// The tokens before the next, oldest first.
    pub(super) fn tokens_before(&self, slot: SlotIndex) -> &[u32] {
        &self.slots[slot.0 as usize].tokens
    }
}
