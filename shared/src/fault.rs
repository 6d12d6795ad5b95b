//! Why a worker died: the exit codes, and the report of a non-finite value.

use serde::{Deserialize, Serialize};

use crate::ids::{Position, SessionId};

/// Every way a worker ends by itself, with its exit code. The numbers are an API: they stand in
/// the journal, in `/status` and in the README. Signals are the supervisor's to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum WorkerExit {
    /// Asked to leave, and left.
    Clean = 0,
    /// The command line was not understood (clap's code).
    Usage = 2,
    /// The supervisor spoke another protocol version or sent nonsense.
    Protocol = 10,
    /// The weight file is missing, damaged, or of an architecture this build does not know.
    Model = 11,
    /// Memory for weights, KV cache or buffers could not be had.
    OutOfMemory = 12,
    /// A value that must be finite was not.
    NonFinite = 13,
    /// The link closed: the supervisor is gone.
    SupervisorGone = 14,
    /// A broken invariant in the worker's own code.
    Panic = 15,
    /// The compute backend failed.
    Backend = 16,
    /// A mapped weight file could not be read (SIGBUS): truncated or on a failing disk.
    WeightsUnreadable = 17,
}

impl WorkerExit {
    /// Every exit, for tables and tests.
    pub const ALL: [Self; 10] = [
        Self::Clean,
        Self::Usage,
        Self::Protocol,
        Self::Model,
        Self::OutOfMemory,
        Self::NonFinite,
        Self::SupervisorGone,
        Self::Panic,
        Self::Backend,
        Self::WeightsUnreadable,
    ];

    /// The process exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The name in epitaphs and, but for one word, in the supervisor's counters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Usage => "usage",
            Self::Protocol => "protocol",
            Self::Model => "model",
            Self::OutOfMemory => "out_of_memory",
            Self::NonFinite => "non_finite",
            Self::SupervisorGone => "supervisor_gone",
            Self::Panic => "panic",
            Self::Backend => "backend",
            Self::WeightsUnreadable => "weights_unreadable",
        }
    }

    /// The exit that a process exit code stands for.
    #[must_use]
    pub fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|exit| i32::from(exit.code()) == code)
    }
}

/// A value that must be finite was not. Nothing was sampled from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NonFinite {
    /// The session whose row it was.
    pub session: SessionId,
    /// Its position in that session.
    pub position: Position,
    /// Where in the forward pass.
    pub place: NonFinitePlace,
}

/// The part of the forward pass that was scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NonFinitePlace {
    /// The logits row of a position about to be sampled.
    Logits,
}
