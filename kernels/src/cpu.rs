//! The fast versions, for host processors; instructions are chosen at run time by
//! [`Isa`](crate::isa::Isa).
//!
//! The only place of this crate where `unsafe` is allowed: for instructions beyond the baseline and
//! for threads that write disjoint parts of one slice.

pub mod pool;
pub mod shared_mut;

mod attention;
mod exp;
pub mod kv;
mod kv_append;
mod lanes;
mod nonfinite_scan;
mod residual_add;
mod rms_norm;
mod rope;
mod rows;
mod swiglu;

pub use attention::{AttentionPart, attention};
pub use kv_append::kv_append;
pub use nonfinite_scan::nonfinite_scan;
pub use residual_add::{add_bias, residual_add};
pub use rms_norm::rms_norm;
pub use rope::{RopeAngles, RopeError, RopeTable, rope};
pub use swiglu::swiglu;
