//! How the supervisor's process ends, told apart by exit code.
//!
//! The numbers are an API: unit files and scripts act on them. Everything here is decided before
//! the listener accepts its first connection, but for `Internal`.

use std::process::ExitCode;

/// Why the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Stopped as asked.
    Ok = 0,
    /// A broken invariant, or a failure nobody planned for.
    Internal = 1,
    /// The command line was not understood (clap's code).
    Usage = 2,
    /// A configuration key is unknown, of the wrong type or out of range.
    Configuration = 3,
    /// The weight file is missing, damaged, or of a kind this build does not know.
    Model = 4,
    /// The address cannot be listened on: in use, or not permitted.
    Listen = 5,
    /// The state directory cannot be written, or another supervisor holds it.
    StateDir = 6,
    /// The worker's program is missing or cannot be executed.
    WorkerProgram = 7,
}

/// The table of exit codes as `--help` shows it.
pub const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  stopped as asked
  1  internal failure
  2  command line not understood
  3  configuration: unknown key, wrong type, out of range
  4  weight file missing, damaged or of an unknown kind
  5  listen address in use or not permitted
  6  state directory not writable, or held by another supervisor
  7  worker program missing or not executable";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An error that ends the process before it serves: what to say, and with which code to leave.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StartError {
    /// The exit code's meaning.
    pub exit: Exit,
    /// What happened, where, and what can be done; one line.
    pub message: String,
}

impl StartError {
    /// An error with its exit.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }
}
