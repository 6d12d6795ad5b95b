//! Tools for people: what the engine does, without a supervisor.

mod bench;
mod logits;
mod perplexity;
mod token_ids;

pub use bench::Bench;
pub use logits::Logits;
pub use perplexity::Perplexity;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use shared::fault::WorkerExit;

use crate::engine::{EngineError, ModelInfo, Numerics};

/// Why a tool ended without a result.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// What the process exits with.
    pub exit: WorkerExit,
    /// What happened, where, and what can be done.
    pub message: String,
}

impl ToolError {
    /// Says what happened, on stderr.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        note(&format!("strata-worker: {self}"));
        ExitCode::from(self.exit.code())
    }

    fn usage(message: impl Into<String>) -> Self {
        Self { exit: WorkerExit::Usage, message: message.into() }
    }
}

impl From<EngineError> for ToolError {
    fn from(error: EngineError) -> Self {
        Self { exit: error.exit(), message: error.to_string() }
    }
}

/// The instruction set that `STRATA_ISA` asks for; none if it is not set.
fn forced_instruction_set() -> Option<String> {
    std::env::var("STRATA_ISA").ok().filter(|name| !name.is_empty())
}

/// A numerics profile, by its name on the command line.
fn numerics(name: &str) -> Result<Numerics, String> {
    Numerics::from_name(name)
        .ok_or_else(|| format!("`{name}` is none of fast, careful and reference"))
}

/// Writes one line of result. A reader that has gone away is no error of ours.
fn print_line(line: &str) -> Result<(), ToolError> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(ToolError {
            exit: WorkerExit::Usage,
            message: format!("the result cannot be written to standard output: {error}"),
        }),
        _ => Ok(()),
    }
}

/// Says what is suspicious about the weight file, on stderr.
pub fn warn(info: &ModelInfo) {
    for warning in &info.warnings {
        note(&format!("strata-worker: warning: {warning}"));
    }
}

/// Writes one line of what is going on.
fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
