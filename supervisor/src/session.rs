//! Sessions.

pub mod log;
