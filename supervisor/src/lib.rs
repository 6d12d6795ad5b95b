//! The process that survives: HTTP, sessions, token logs, and the life of the worker.
//!
//! # Layout
//!
//! * [`api`]: the HTTP API, on the network and on the control socket.
//! * [`ctl`]: the operator's tool, `strata-ctl`.
//! * [`exit`]: process exit codes.
//! * [`journal`]: tracing to stderr.
//! * [`model_file`]: what the supervisor reads of the weight file.
//! * [`replay`]: which sessions go to the worker next.
//! * [`start`]: what must be there before anybody is served, each with its exit code.
//! * [`run`]: the running supervisor: event loop, listeners, signals.
//! * [`settings`]: the configuration and where each value came from.
//! * [`event_loop`]: the one task that owns all state, and the handle to it.
//! * [`session`]: the life of one token sequence; its token log.
//! * [`status`]: the one status object.
//! * [`text`]: text to token ids and back.
//! * [`worker`]: the life of the worker process; its link; the crash budget.
#![deny(unsafe_code)]

pub mod api;
pub mod ctl;
pub mod event_loop;
pub mod exit;
pub mod journal;
pub mod model_file;
pub mod replay;
pub mod run;
pub mod session;
pub mod settings;
pub mod start;
pub mod status;
pub mod text;
pub mod worker;
