//! Why the engine could not be opened or could not compute.

use std::path::PathBuf;

use shared::fault::WorkerExit;
use shared::ids::Position;

/// What went wrong, where, and what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The weight file cannot be opened, read or mapped.
    #[error("weight file {}: {what}", path.display())]
    Open {
        /// The file, or the part of a split one.
        path: PathBuf,
        /// What was being done, and why it failed.
        what: String,
    },
    /// The weight file was read and cannot be used.
    #[error("weight file {}: {what}", path.display())]
    Invalid {
        /// The file, or the part of a split one.
        path: PathBuf,
        /// The rule that is broken, and by what.
        what: String,
    },
    /// An option does not fit the model or the machine.
    #[error("option `{option}`: {what}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// Why it cannot be used.
        what: String,
    },
    /// Memory could not be had.
    #[error("out of memory: {bytes} bytes for {what}")]
    OutOfMemory {
        /// What it was for.
        what: String,
        /// How much was asked for.
        bytes: u64,
    },
    /// A value that must be finite was not. Nothing may be sampled from this pass.
    #[error("logit {index} of part {part}, position {position}, is not finite")]
    NonFinite {
        /// Index of the part in the pass.
        part: usize,
        /// Position of the row.
        position: Position,
        /// First bad index in the row.
        index: usize,
    },
    /// The compute backend failed.
    #[error("backend: {0}")]
    Backend(String),
}

impl EngineError {
    /// The exit a worker leaves with after this error.
    #[must_use]
    pub fn exit(&self) -> WorkerExit {
        match self {
            Self::Open { .. } | Self::Invalid { .. } => WorkerExit::Model,
            Self::Option { .. } => WorkerExit::Usage,
            Self::OutOfMemory { .. } => WorkerExit::OutOfMemory,
            Self::NonFinite { .. } => WorkerExit::NonFinite,
            Self::Backend(_) => WorkerExit::Backend,
        }
    }
}
