//! The link between the supervisor and one worker life. This file is the wire document.
//!
//! One Unix stream socket pair per life; each frame ([`crate::frame`]) holds one [`Message`].
//! Every message carries the incarnation; a receiver ignores a message of another one (the worker
//! leaves with [`crate::fault::WorkerExit::Protocol`], the supervisor drops it and says so).
//!
//! # Order
//!
//! ```text
//! supervisor                         worker
//!   Start ───────────────────────────►        version, model, sizes
//!         ◄─────────────────────────── Loading   zero or more, while it loads
//!         ◄─────────────────────────── Ready     after it has computed one token
//!   Submit ──────────────────────────►        a session: prompt plus tokens already emitted
//!         ◄─────────────────────────── Progress  zero or more, while it prefills
//!         ◄─────────────────────────── Tokens    one or more, positions without a gap
//!   Ack ─────────────────────────────►        the worker may run RUN_AHEAD_MAX beyond it
//!   End ─────────────────────────────►        stop string, cancel: at an exact position
//!         ◄─────────────────────────── Ended     exactly one per Submit
//!   Ping ────────────────────────────►
//!         ◄─────────────────────────── Pong      from the loop that computes, so it proves work
//!   Leave ───────────────────────────►        exit 0
//! ```
//!
//! # Laws
//!
//! * `Tokens` of a session start at the position after the last submitted token and have no gap.
//! * A session's slot is free when its `Ended` has been sent, not before.
//! * A token is sampled only from a finite row; otherwise the worker sends `NonFinite` and leaves.
//! * The draw at a position depends on (seed, choice, position) and that row's logits alone, so a
//!   resubmission of prompt plus emitted tokens goes on exactly where the last life stopped.

use serde::{Deserialize, Serialize};

use crate::fault::NonFinite;
use crate::ids::{Incarnation, Position, SessionId, TokenId};
use crate::limits::{LOGIT_BIAS_MAX, TOP_LOGPROBS_MAX};

/// Raised by one with every change of this file or of `codec.rs`.
///
/// 1: the first.
pub const PROTOCOL_VERSION: u32 = 1;

/// The file descriptor at which a worker finds its end of the link.
pub const LINK_FD: i32 = 3;

/// The envelope of every message in both directions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message<T> {
    /// The worker life this message belongs to.
    pub incarnation: Incarnation,
    /// The message itself.
    pub body: T,
}

/// Supervisor to worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// First frame of a life. Not to be repeated. Answer: `Loading`s, then `Ready`, or an exit.
    Start(Start),
    /// Compute a session. Not to be repeated within a life. Answer: `Progress` and `Tokens`, then
    /// one `Ended`. Bounded by the context length; refused with `EndReason::Refused` otherwise.
    Submit(Box<Submit>),
    /// Tokens up to and including `position` are in the log. May be repeated; never moves back.
    Ack {
        /// The session.
        session: SessionId,
        /// Last logged position.
        position: Position,
    },
    /// End the session so that `keep` tokens remain of it. May be repeated; an unknown session is
    /// ignored, since its `Ended` may be under way. Answer: `Ended`.
    End {
        /// The session.
        session: SessionId,
        /// Tokens (prompt and emitted) that stay valid.
        keep: Position,
    },
    /// Prove that the computing loop turns. Answer: `Pong` with the same number.
    Ping(u64),
    /// Exit cleanly. Sessions still open are dropped.
    Leave,
}

/// Worker to supervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromWorker {
    /// Loading goes on. Counts as progress only if `done_bytes` rose.
    Loading {
        /// Weight bytes ready for use.
        done_bytes: u64,
        /// Weight bytes in all.
        total_bytes: u64,
    },
    /// The engine is loaded and has computed a token with finite logits.
    Ready(Box<Ready>),
    /// Prefill goes on. `position` is the next position to be computed; sent at least after each
    /// chunk, and within long chunks whenever layers were completed (then `position` repeats).
    Progress {
        /// The session.
        session: SessionId,
        /// Next position to compute.
        position: Position,
    },
    /// Sampled tokens, in order, at `position`, `position + 1`, …
    Tokens {
        /// The session.
        session: SessionId,
        /// Position of the first.
        position: Position,
        /// The tokens.
        tokens: Vec<Sampled>,
    },
    /// The session is over and its slot free.
    Ended {
        /// The session.
        session: SessionId,
        /// Tokens (prompt and emitted) it had.
        length: Position,
        /// Why.
        reason: EndReason,
    },
    /// Answer to `Ping`.
    Pong(u64),
    /// A non-finite value was found; the worker leaves after this frame.
    NonFinite(NonFinite),
}

/// What a life needs to know before it can load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// [`PROTOCOL_VERSION`] of the supervisor.
    pub protocol_version: u32,
    /// Path of the weight file (the first part of a split one).
    pub model: String,
    /// [`crate::gguf::Gguf::header_digest`] of that file as the supervisor knows it. Another
    /// header may be another tokenizer: the worker leaves with
    /// [`crate::fault::WorkerExit::Model`]. `None` takes any file.
    pub header_digest: Option<[u8; 32]>,
    /// Context length per sequence, in tokens; 0 takes the model's own.
    pub context_len: u32,
    /// Sequences computed at once.
    pub slots: u32,
    /// Longest part of a prompt computed in one pass, in tokens.
    pub prefill_chunk: u32,
    /// Compute threads; 0 takes one per core.
    pub threads: u32,
}

/// What a life has become.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// Architecture name of the weight file.
    pub arch: String,
    /// Context length per sequence, in tokens.
    pub context_len: u32,
    /// Vocabulary size: rows of the output matrix.
    pub vocab_size: u32,
    /// Compute threads in use.
    pub threads: u32,
    /// Instruction set the kernels chose ("avx512-vnni", "avx2", "portable").
    pub instruction_set: String,
    /// Weight bytes.
    pub weight_bytes: u64,
    /// Parameters in all tensors.
    pub parameters: u64,
    /// Digest of all headers and of a sample of each tensor. No stream goes on over a life with
    /// another one: its text would be that of two models.
    pub fingerprint: [u8; 32],
}

/// A session to compute: the prompt and what was already emitted in an earlier life.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submit {
    /// The session.
    pub session: SessionId,
    /// Prompt, then emitted tokens. At least one.
    pub tokens: Vec<TokenId>,
    /// How many of `tokens` are the prompt. The rest is forced, never sampled again.
    pub prompt_len: u32,
    /// The session ends (`EndReason::Length`) when it holds this many tokens in all.
    pub length_max: Position,
    /// Sampling one of these ends the session. The token is sent, and it is the last.
    pub end_tokens: Vec<TokenId>,
    /// How to draw.
    pub sampling: Sampling,
}

/// How tokens are drawn. Both sides judge it by [`Sampling::check`]; the worker clamps nothing and
/// refuses what does not pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Key of the counter-based generator.
    pub seed: u64,
    /// Index of the choice (`n`): choices of one request draw differently.
    pub choice: u32,
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the k most likely; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches p; 1 keeps all.
    pub top_p: f32,
    /// Keep what is at least p times as likely as the best; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of seen tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of seen tokens, times their count; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted from the logits of seen tokens, once; 0 is off.
    pub presence_penalty: f32,
    /// How many of the last tokens count as seen by the repeat penalty. Frequency and presence
    /// penalties look at all emitted tokens, as the OpenAI API says.
    pub penalty_last_n: u32,
    /// Added to logits before anything else. At most `LOGIT_BIAS_MAX` entries.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Report the chosen token's log-probability and this many of the best; `None` reports none.
    pub logprobs: Option<u32>,
}

impl Sampling {
    /// Whether a model of `vocab_size` tokens can be drawn from so. The one rule of both sides: the
    /// supervisor refuses a request by it before a worker would refuse the session.
    ///
    /// # Errors
    ///
    /// Names the setting and the range it must lie in.
    pub fn check(&self, vocab_size: u32) -> Result<(), String> {
        self.check_numbers()?;
        self.check_counts(vocab_size)
    }

    fn check_numbers(&self) -> Result<(), String> {
        let Self { temperature, top_p, min_p, repeat_penalty, .. } = *self;
        let numbers = [
            ("temperature", temperature, "0 or more", temperature >= 0.0),
            ("top_p", top_p, "above 0 and at most 1", top_p > 0.0 && top_p <= 1.0),
            ("min_p", min_p, "from 0 to 1", (0.0..=1.0).contains(&min_p)),
            ("repeat_penalty", repeat_penalty, "above 0", repeat_penalty > 0.0),
            ("frequency_penalty", self.frequency_penalty, "finite", true),
            ("presence_penalty", self.presence_penalty, "finite", true),
        ];
        match numbers.iter().find(|(_, value, _, is_good)| !(value.is_finite() && *is_good)) {
            None => Ok(()),
            Some((name, value, range, _)) => {
                Err(format!("sampling: {name} is {value}; it must be {range}"))
            }
        }
    }

    fn check_counts(&self, vocab_size: u32) -> Result<(), String> {
        let entries = self.logit_bias.len();
        if entries > LOGIT_BIAS_MAX {
            return Err(format!(
                "sampling: logit_bias has {entries} entries; the limit is {LOGIT_BIAS_MAX}"
            ));
        }
        for (token, bias) in &self.logit_bias {
            if !bias.is_finite() {
                return Err(format!("sampling: the logit_bias of token {token} is {bias}"));
            }
            if token.0 >= vocab_size {
                return Err(format!(
                    "sampling: logit_bias names token {token}, outside the vocabulary of \
                     {vocab_size}"
                ));
            }
        }
        match self.logprobs {
            Some(count) if count > TOP_LOGPROBS_MAX => {
                Err(format!("sampling: logprobs is {count}; the limit is {TOP_LOGPROBS_MAX}"))
            }
            _ => Ok(()),
        }
    }
}

impl Default for Sampling {
    /// Greedy, nothing reported.
    fn default() -> Self {
        Self {
            seed: 0,
            choice: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_last_n: 64,
            logit_bias: Vec::new(),
            logprobs: None,
        }
    }
}

/// One sampled token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// The token.
    pub token: TokenId,
    /// Its probability, and its rivals', if asked for.
    pub logprobs: Option<Box<Logprobs>>,
}

/// Log-probabilities of the model itself: after `logit_bias`, before penalties, temperature and
/// truncation. All finite and at most 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Logprobs {
    /// Natural logarithm of the chosen token's probability.
    pub chosen: f32,
    /// The most likely tokens, best first, ties by lower id.
    pub top: Vec<(TokenId, f32)>,
}

/// Why a session ended in the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndReason {
    /// One of the end tokens was sampled.
    EndToken,
    /// `length_max` was reached.
    Length,
    /// The supervisor sent `End`.
    Told,
    /// The submission cannot be computed; says why. A supervisor bug or a model mismatch.
    Refused(String),
}
