//! Forward passes over parts of sequences: prefill, decode and any mix of them.
//!
//! The engine knows slots, positions and token ids. It does not know sessions, sampling settings
//! or the link; those are the serving loop's. Rows are order-stable: what a position computes
//! depends on its sequence up to it and on nothing else, neither the other parts of the pass, nor
//! the slot, nor the number of threads.

mod error;
mod llama;
mod numerics;
mod pass;
mod qwen4exp;
pub mod sampler;

pub use error::EngineError;
pub use numerics::Numerics;

use std::ops::ControlFlow;
use std::path::Path;

use shared::ids::{Position, TokenId};
use shared::limits::{CONTEXT_LEN_MAX, SLOTS_MAX};

use self::llama::Llama;
use self::pass::{Pass, PassSpan};
use self::qwen4exp::Qwen4Exp;
use crate::backend::Backend;
use crate::model::{self, Sizes, WeightFile};

/// Longest part of a pass, in tokens; every kernel's scratch is bounded by it.
const PREFILL_CHUNK_MAX: u32 = 65_536;
const THREADS_MAX: u32 = 1024;

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
    /// The header that the weight file must have; `None` takes any.
    pub header_digest: Option<[u8; 32]>,
    /// In what numbers to compute.
    pub numerics: Numerics,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context_len: 0,
            slots: 4,
            prefill_chunk: 512,
            threads: 0,
            instruction_set: None,
            header_digest: None,
            numerics: Numerics::Fast,
        }
    }
}

impl EngineOptions {
    fn validate(&self) -> Result<(), EngineError> {
        for (option, value, low, high) in [
            ("context_len", self.context_len, 0, CONTEXT_LEN_MAX),
            ("slots", self.slots, 1, SLOTS_MAX),
            ("prefill_chunk", self.prefill_chunk, 1, PREFILL_CHUNK_MAX),
            ("threads", self.threads, 0, THREADS_MAX),
        ] {
            if !(low..=high).contains(&value) {
                let what = format!("{value} is not between {low} and {high}");
                return Err(EngineError::Option { option, what });
            }
        }
        Ok(())
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
    /// Digest of all headers and of a sample of each tensor.
    pub fingerprint: [u8; 32],
    /// Whether a sequence starts with the tokenizer's beginning-of-sequence token, and which.
    pub bos: Option<TokenId>,
    /// What is suspicious about the weight file, one sentence each.
    pub warnings: Vec<String>,
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

/// A model of either architecture, with the state of every slot.
#[derive(Debug)]
enum Model<B: Backend> {
    Llama(Box<Llama<B>>),
    Qwen4Exp(Box<Qwen4Exp<B>>),
}

/// Calls the same method of whichever model there is.
macro_rules! each_model {
    ($model:expr, $inner:ident => $call:expr) => {
        match $model {
            Model::Llama($inner) => $call,
            Model::Qwen4Exp($inner) => $call,
        }
    };
}

/// A model on a backend, with the state of every slot.
#[derive(Debug)]
pub struct Engine<B: Backend> {
    info: ModelInfo,
    prefill_chunk: usize,
    n_slots: usize,
    backend: B,
    model: Model<B>,
    pass: Pass,
    logits: B::Rows,
    logits_rows: Vec<(usize, Position)>,
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
        options.validate()?;
        let mut file = WeightFile::open(model)?;
        if options.header_digest.is_some_and(|digest| digest != file.header_digest()) {
            let what = "it is not the file that the supervisor read at its start: put that one \
                        back, or restart the supervisor to serve this one";
            return Err(EngineError::Invalid { path: model.to_owned(), what: what.to_owned() });
        }
        let sizes = model::sizes(&file)?;
        let backend = B::open(options)?;
        let info = model_info(&file, &sizes, options, &backend)?;
        let slots = options.slots as usize;
        // No part is longer than the context, so no room for more is needed.
        let prefill_chunk = options.prefill_chunk.min(info.context_len) as usize;
        let n_tokens = prefill_chunk + slots;
        let model = match &sizes {
            Sizes::Llama(hyper) => {
                let model = Llama::open(&backend, &mut file, hyper, options, n_tokens)?;
                Model::Llama(Box::new(model))
            }
            Sizes::Qwen4Exp(hyper) => {
                let model = Qwen4Exp::open(&backend, &mut file, hyper, options, n_tokens)?;
                Model::Qwen4Exp(Box::new(model))
            }
        };
        file.populate(progress)?;
        Ok(Self {
            logits: backend.rows(slots, info.vocab_size as usize)?,
            info,
            prefill_chunk,
            n_slots: slots,
            model,
            pass: Pass::default(),
            logits_rows: Vec::new(),
            backend,
        })
    }

    /// What the engine turned out to be.
    #[must_use]
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Most tokens of one part.
    #[must_use]
    pub fn prefill_chunk(&self) -> usize {
        self.prefill_chunk
    }

    /// Tokens that the slot's KV cache holds: the position of its next one.
    #[must_use]
    pub fn length(&self, slot: SlotIndex) -> Position {
        Position(0).plus(each_model!(&self.model, model => model.length(slot)))
    }

    /// One forward pass over all parts. `hook` is called after every layer; if it breaks, the
    /// pass is aborted, its positions are dropped (and, of a model with
    /// recurrent state, all of the slot's), and the answer is `None`.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if the KV cache or the room for logits cannot grow, `NonFinite` if a row of
    /// logits is not finite, `Backend` otherwise. The positions of the pass are then dropped.
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
        self.check(parts);
        self.lay_out(parts);
        let result = self.compute(parts, hook);
        for part in parts {
            match result {
                Ok(ControlFlow::Continue(())) => {
                    let length = part.start.index() + part.tokens.len();
                    each_model!(&mut self.model, model => model.set_length(part.slot, length));
                }
                _ => self.drop_failed(part),
            }
        }
        Ok(match result? {
            ControlFlow::Break(()) => None,
            ControlFlow::Continue(()) => Some(Logits {
                values: self.backend.read(&self.logits),
                vocab_size: self.info.vocab_size as usize,
                rows: &self.logits_rows,
            }),
        })
    }

    /// Drops positions of the slot from `length` on, and the memory they took. A model with
    /// recurrent state may not be able to stop there: [`Engine::length`] says where the slot now
    /// ends, which may be earlier.
    pub fn truncate(&mut self, slot: SlotIndex, length: Position) {
        match &mut self.model {
            Model::Llama(model) => model.truncate(slot, length),
            Model::Qwen4Exp(model) if length.index() < model.length(slot) => model.clear(slot),
            Model::Qwen4Exp(_) => {}
        }
    }

    /// After a pass that did not end: its positions are dropped, and with them all states that it
    /// may have changed.
    fn drop_failed(&mut self, part: &Part<'_>) {
        match &mut self.model {
            Model::Llama(model) => model.truncate(part.slot, part.start),
            Model::Qwen4Exp(model) => model.clear(part.slot),
        }
    }

    fn compute(
        &mut self,
        parts: &[Part<'_>],
        hook: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, EngineError> {
        for part in parts {
            let length = part.start.index() + part.tokens.len();
            let backend = &self.backend;
            each_model!(&mut self.model, model => model.grow(backend, part.slot, length))?;
        }
        let n_logits = self.logits_rows.len();
        self.backend.reserve(&mut self.logits, n_logits)?;
        let (backend, pass, logits) = (&self.backend, &self.pass, &mut self.logits);
        let flow =
            each_model!(&mut self.model, model => model.forward(backend, pass, logits, hook));
        if flow.is_continue() {
            self.check_finite()?;
        }
        Ok(flow)
    }

    /// No row that holds a NaN or an infinity is given out.
    fn check_finite(&self) -> Result<(), EngineError> {
        for (row, &(part, position)) in self.logits_rows.iter().enumerate() {
            if let Some(index) = self.backend.nonfinite_scan(&self.logits, row) {
                return Err(EngineError::NonFinite { part, position, index });
            }
        }
        Ok(())
    }

    fn check(&self, parts: &[Part<'_>]) {
        let vocab_size = self.info.vocab_size;
        let n_tokens: usize = parts.iter().map(|part| part.tokens.len()).sum();
        let n_tokens_max = self.prefill_chunk + self.n_slots;
        assert!(n_tokens <= n_tokens_max, "{n_tokens} tokens in a pass of at most {n_tokens_max}");
        for (index, part) in parts.iter().enumerate() {
            let count = part.tokens.len();
            assert!((1..=self.prefill_chunk).contains(&count), "a part of {count} tokens");
            assert_eq!(part.start, self.length(part.slot), "part {index} starts elsewhere");
            assert!(part.start.plus(count).0 <= self.info.context_len, "outside the context");
            assert!(part.tokens.iter().all(|token| token.0 < vocab_size), "an unknown token");
            let is_same_slot = |other: &Part<'_>| other.slot == part.slot;
            assert!(!parts[..index].iter().any(is_same_slot), "two parts of one slot");
        }
    }

    /// Puts the rows of all parts one after the other.
    fn lay_out(&mut self, parts: &[Part<'_>]) {
        let pass = &mut self.pass;
        pass.clear();
        self.logits_rows.clear();
        for (index, part) in parts.iter().enumerate() {
            let rows = pass.tokens.len()..pass.tokens.len() + part.tokens.len();
            pass.tokens.extend(part.tokens.iter().map(|token| token.0));
            pass.positions.extend((part.start.0..).take(part.tokens.len()));
            let n_wanted = match part.logits {
                LogitsWanted::None => 0,
                LogitsWanted::Last => 1,
                LogitsWanted::All => rows.len(),
            };
            for row in rows.end - n_wanted..rows.end {
                pass.wanted.push(row);
                self.logits_rows.push((index, Position(pass.positions[row])));
            }
            pass.spans.push(PassSpan {
                slot: part.slot,
                start: part.start.index(),
                rows,
                n_wanted,
            });
        }
    }
}

fn model_info<B: Backend>(
    file: &WeightFile,
    sizes: &Sizes,
    options: &EngineOptions,
    backend: &B,
) -> Result<ModelInfo, EngineError> {
    let context_len = match options.context_len {
        0 => sizes.context_len(),
        wanted => wanted.min(sizes.context_len()),
    };
    let count = |value: usize| u32::try_from(value).expect("bounded when the model was read");
    Ok(ModelInfo {
        arch: sizes.arch().to_owned(),
        name: model::name(file)?,
        context_len,
        vocab_size: count(sizes.vocab_size()),
        threads: count(backend.threads()),
        instruction_set: backend.instruction_set().to_owned(),
        weight_bytes: file.weight_bytes(),
        parameters: file.parameters(),
        fingerprint: file.fingerprint(),
        bos: model::bos(file)?,
        warnings: model::warnings(file, sizes),
    })
}
