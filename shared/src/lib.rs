//! What the supervisor and the worker must agree on, and nothing else.
//!
//! This crate holds no behaviour that could block or fail for a reason outside its arguments:
//! no files, no sockets, no clocks, no threads, no unsafe code.
//!
//! # Layout
//!
//! * [`ids`]: newtypes for everything that is counted or named.
//! * [`limits`]: every bound in the system, with const assertions that relate them.
//! * [`protocol`]: the messages of the link. This file is the wire document.
//! * [`frame`]: length-prefixed frames over a byte buffer: check, then parse.
//! * [`codec`]: the only file that names the serialization crate.
//! * [`fault`]: why a worker died: reports, exit codes, the epitaph.
//! * [`gguf`]: a bounded parser for weight-file metadata, over bytes.
//! * [`model_files`]: which models there are, and how the parts of a split one are named.
//! * [`config`]: the typed configuration with its defaults and its validation.
#![forbid(unsafe_code)]

pub mod codec;
pub mod config;
pub mod fault;
pub mod frame;
pub mod gguf;
pub mod ids;
pub mod limits;
pub mod model_files;
pub mod protocol;
