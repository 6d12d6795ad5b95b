//! Forward passes over parts of sequences: prefill, decode and any mix of them.
//!
//! The engine knows slots, positions and token ids. It does not know sessions, sampling settings
//! or the link; those are the serving loop's. Rows are order-stable: what a position computes
//! depends on its sequence up to it and on nothing else, neither the other parts of the pass, nor
//! the slot, nor the number of threads.

mod error;
pub mod sampler;

pub use error::EngineError;

use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::path::Path;

use shared::ids::{Position, TokenId};

use crate::backend::Backend;

/// How an engine is to be set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Context length per sequence, in tokens; 0, or more than the model's own, takes the
    /// model's own.
    pub context_len: u32,
    /// Sequences computed at once, at least 1.
    pub slots: u32,
    /// Most tokens of one part, at least 1. One pass takes up to `prefill_chunk + slots` tokens.
    pub prefill_chunk: u32,
    /// Compute threads; 0 takes one per core.
    pub threads: u32,
    /// Instruction set to use ("portable", "avx2", "avx512"); `None` takes the best there is.
    pub instruction_set: Option<String>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { context_len: 0, slots: 4, prefill_chunk: 512, threads: 0, instruction_set: None }
    }
}

/// What the engine turned out to be; fills the protocol's `Ready`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Architecture name of the weight file.
    pub arch: String,
    /// Name the weight file gives the model; empty if it gives none.
    pub name: String,
    /// Context length per sequence, in tokens.
    pub context_len: u32,
    /// Rows of the output matrix: the length of a logits row.
    pub vocab_size: u32,
    /// Compute threads in use.
    pub threads: u32,
    /// Instruction set the kernels chose.
    pub instruction_set: String,
    /// Bytes of all tensors.
    pub weight_bytes: u64,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Whether a sequence starts with the tokenizer's beginning-of-sequence token, and which.
    pub bos: Option<TokenId>,
}

/// Index of a sequence slot, below [`EngineOptions::slots`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(pub u32);

/// For which tokens of a part logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsWanted {
    /// For none: a prefill chunk that is not the last.
    None,
    /// For the last token only.
    Last,
    /// For every token.
    All,
}

/// Tokens of one sequence to compute in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// The sequence. No two parts of a pass may share one.
    pub slot: SlotIndex,
    /// Position of the first token: the sequence's length so far.
    pub start: Position,
    /// At least one, at most `prefill_chunk`.
    pub tokens: &'a [TokenId],
    /// Which rows of logits to compute.
    pub logits: LogitsWanted,
}

/// The logits of one position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitsRow<'a> {
    /// Index of the part in the pass.
    pub part: usize,
    /// Position of the token whose successor is scored.
    pub position: Position,
    /// One score per vocabulary entry, all finite.
    pub values: &'a [f32],
}

/// The logits of a pass, in order of parts and, within a part, of positions.
#[derive(Debug, Clone, Copy)]
pub struct Logits<'a> {
    values: &'a [f32],
    vocab_size: usize,
    /// Part and position of each row.
    rows: &'a [(usize, Position)],
}

impl<'a> Logits<'a> {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no row was wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row of an index below [`Logits::len`].
    ///
    /// # Panics
    ///
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, index: usize) -> LogitsRow<'a> {
        let (part, position) = self.rows[index];
        let values = &self.values[index * self.vocab_size..][..self.vocab_size];
        LogitsRow { part, position, values }
    }

    /// All rows in order.
    pub fn iter(&self) -> impl Iterator<Item = LogitsRow<'a>> {
        let this = *self;
        (0..this.len()).map(move |index| this.row(index))
    }
}

/// A model on a backend, with the KV cache of every slot.
#[derive(Debug)]
pub struct Engine<B: Backend> {
    info: ModelInfo,
    backend: PhantomData<B>,
}

impl<B: Backend> Engine<B> {
    /// Opens a weight file (any part of a split one) and makes ready to compute.
    ///
    /// `progress` is told the weight bytes that are in memory so far, and those in all.
    ///
    /// # Errors
    ///
    /// [`EngineError`], every variant but `NonFinite`.
    pub fn open(
        model: &Path,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        progress(0, u64::from(options.threads));
        Err(EngineError::Open { path: model.to_owned(), what: "the loader has not landed".into() })
    }

    /// What the engine turned out to be.
    #[must_use]
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Tokens that the slot's KV cache holds.
    #[must_use]
    pub fn len(&self, slot: SlotIndex) -> Position {
        Position(slot.0)
    }

    /// One forward pass over all parts. `hook` is called after every layer; if it breaks, the
    /// pass is aborted, its positions are dropped from the KV cache, and the answer is `None`.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if the KV cache cannot grow, `NonFinite` if a row of logits is not finite,
    /// `Backend` otherwise. The positions of the pass are then dropped from the KV cache.
    ///
    /// # Panics
    ///
    /// If a part breaks the rules written at [`Part`], or a token is outside the vocabulary, or
    /// a position outside the context: the caller checks what it submits.
    pub fn forward(
        &mut self,
        parts: &[Part<'_>],
        hook: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Logits<'_>>, EngineError> {
        match hook() {
            ControlFlow::Break(()) => Ok(None),
            ControlFlow::Continue(()) => {
                Err(EngineError::Backend(format!("{} parts", parts.len())))
            }
        }
    }

    /// Drops every position of the slot from `length` on, and the memory they took.
    pub fn truncate(&mut self, slot: SlotIndex, length: Position) {
        debug_assert!(length <= self.len(slot));
    }
}
