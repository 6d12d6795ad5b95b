//! The token log: what was emitted, in order, and how it ended.

use std::fmt;

use shared::ids::{Incarnation, Position, TokenId};
use shared::protocol::Logprobs;

/// One entry of a token log.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// An emitted token.
    Token {
        /// Its position in the sequence; the first is the prompt's length.
        position: Position,
        /// The token.
        token: TokenId,
        /// The text this token released after hold-back; may be empty.
        text: String,
        /// Its log-probabilities, if asked for.
        logprobs: Option<Box<Logprobs>>,
    },
    /// The last record, exactly one.
    End {
        /// Text that was held back and belongs to the answer.
        text: String,
        /// How it ended.
        outcome: Outcome,
    },
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The model drew an end token.
    Stop,
    /// This stop string was completed.
    StopString(String),
    /// The token limit or the context's end was reached.
    Length,
    /// It could not be finished.
    Failed(Failure),
    /// Its reader went away. Never read by anyone.
    Cancelled,
}

/// Why a session could not be finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// `crash`, `hang`, `nonfinite`, `load`, `held`, `shutdown`, `refused` or `internal`.
    pub kind: &'static str,
    /// What happened and what can be done, in one or two sentences.
    pub message: String,
    /// Whether the same request failed the same way in fresh processes: do not resend it.
    pub deterministic: bool,
    /// The position that could not be computed, if one is to blame.
    pub position: Option<Position>,
    /// What it was doing.
    pub phase: Phase,
    /// Submissions to a worker, this failure's included.
    pub attempts: u32,
    /// The last worker life that had it; 0 if none had.
    pub incarnation: Incarnation,
    /// Whether sending the request again may help.
    pub retryable: bool,
}

/// What a session was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for a slot or a worker.
    Queued,
    /// Reading its prompt.
    Prefill,
    /// Emitting tokens.
    Decode,
    /// Reading prompt and emitted tokens again after a recycle.
    Replay,
}

impl Phase {
    /// The name used in the API and the journal.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Replay => "replay",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads a log from its start, at its own pace. Dropping it before the end cancels the session.
#[derive(Debug)]
pub struct LogReader {}

impl LogReader {
    /// The next records, at least one, at most a bounded batch. After [`Record::End`] nothing
    /// follows: do not call again.
    ///
    /// # Cancel safety
    ///
    /// Yes: records are taken only when they are returned.
    pub async fn next(&mut self) -> Vec<Record> {
        std::future::pending().await
    }
}
