//! The process that survives: HTTP, sessions, token logs, and the life of the worker.
//!
//! # Layout
//!
//! * [`event_loop`]: the one task that owns all state, and the handle to it.
//! * [`session`]: the life of one token sequence; its token log.
//! * [`status`]: the one status object.

pub mod event_loop;
pub mod model_file;
pub mod session;
pub mod status;
pub mod text;
