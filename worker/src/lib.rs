//! The disposable process: it may die at any moment, and nothing is lost with it.
//!
//! The other end is the supervisor, over the link of [`shared::protocol`]. The worker holds the
//! weights, the KV cache and the compute threads; it knows no text, no client and no clock of
//! the outside. It never repairs itself: what must not happen ends the process with a
//! [`shared::fault::WorkerExit`] and one line on stderr, the epitaph.
//!
//! # Layout
//!
//! * [`backend`]: what computes; static dispatch.
//! * [`model`]: hyperparameters and named weights; the weight file is mapped, never copied.
//! * [`kv_cache`]: keys and values of each slot, in pages that grow with use.
//! * [`engine`]: forward passes over parts of sequences, and the sampler.
//! * [`cli`]: the tools for people, `bench` and `perplexity`.
//! * [`seal`]: what the process does once, before anything else.
//! * [`epitaph`]: last words: fixed buffer, no allocation, one write.
//! * [`serve`]: the blocking loop between link, scheduler and engine.
#![deny(unsafe_code)]

pub mod backend;
pub mod cli;
pub mod engine;
pub mod epitaph;
pub mod kv_cache;
pub mod model;
pub mod seal;
pub mod serve;
