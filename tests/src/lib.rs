//! The harness: runs the real programs, over real sockets, and looks at what they promise.
//!
//! Tests may depend on `shared` and run the binaries, never on the inside of supervisor or worker.
//!
//! # Layout
//!
//! * [`fake`]: the fake worker's script and the rule of its tokens.
//! * [`tiny_model`]: a weight file made on the spot.
#![forbid(unsafe_code)]

pub mod fake;
pub mod tiny_model;
