//! The harness: runs the real programs, over real sockets, and looks at what they promise.
//!
//! Tests may depend on `shared` and run the binaries, never on the inside of supervisor or worker.
//!
//! # Layout
//!
//! * [`server`]: a supervisor under test: start, watch, stop, check what it left.
//! * [`http`], [`sse`]: a client that hides nothing.
//! * [`fake`]: the fake worker's script and the rule of its tokens.
//! * [`tiny_model`]: a weight file made on the spot.
//! * [`model`]: the real, small model: fetched once, checked, cached.
//! * [`process`]: other processes as `/proc` shows them; folders that go away.
//! * [`programs`]: where the programs under test are.
//! * [`python`]: Python with pip, in a folder of our own.
//! * [`build`]: building the programs, for `cargo demo` and `cargo verify`.
//! * [`storm`]: many streams over a worker that is killed again and again.
//! * [`random`]: repeatable randomness.
//! * [`wait`]: waiting for a condition.
#![forbid(unsafe_code)]

pub mod build;
pub mod fake;
pub mod http;
pub mod model;
pub mod process;
pub mod programs;
pub mod python;
pub mod random;
pub mod server;
pub mod sse;
pub mod storm;
pub mod tiny_model;
pub mod wait;
