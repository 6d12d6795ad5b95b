//! The fast versions, for host processors; instructions are chosen at run time by
//! [`Isa`](crate::isa::Isa).
//!
//! The only place of this crate where `unsafe` is allowed: for instructions beyond the baseline and
//! for threads that write disjoint parts of one slice.

#![allow(unsafe_code, reason = "see above")]

pub mod pool;
pub mod shared_mut;

pub mod activations;
mod attention;
mod embed;
mod exp;
pub mod kv;
mod kv_append;
mod lanes;
mod matmul;
mod nonfinite_scan;
mod residual_add;
mod rms_norm;
mod rope;
mod rows;
pub mod sample;
mod swiglu;

pub use activations::Activations;
pub use attention::{AttentionPart, attention};
pub use embed::embed;
pub use kv_append::kv_append;
pub use matmul::matmul;
pub use nonfinite_scan::nonfinite_scan;
pub use residual_add::{add_bias, residual_add};
pub use rms_norm::rms_norm;
pub use rope::{RopeAngles, RopeError, RopeTable, rope};
pub use sample::sample;
pub use swiglu::swiglu;
