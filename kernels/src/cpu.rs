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
mod attention_gate;
mod causal_conv;
mod delta_rule;
mod embed;
mod exp;
mod gated_rms_norm;
mod hyper;
mod indexer;
pub mod kv;
mod kv_append;
mod lanes;
mod matmul;
mod moe;
mod ngram;
mod nonfinite_scan;
mod ple_gate;
mod residual_add;
mod rms_norm;
mod rope;
mod rows;
pub mod sample;
mod swiglu;

pub use activations::Activations;
pub use attention::{AttentionPart, attention};
pub use attention_gate::{sigmoid_mul, split_heads};
pub use causal_conv::{ConvShape, causal_conv};
pub use delta_rule::{DeltaForm, DeltaInputs, DeltaShape, DeltaShapeError, KeyHeads, delta_rule};
pub use embed::{embed, embed_rows};
pub use gated_rms_norm::{Gate, gated_rms_norm};
pub use hyper::{hyper_add, hyper_expand, hyper_mix, hyper_silu};
pub use indexer::{
    IndexerError, IndexerKeys, IndexerShape, Selection, indexer_append, indexer_select,
};
pub use kv_append::kv_append;
pub use matmul::{Precision, matmul};
pub use moe::{Routing, expert_matmul, moe_combine, route};
pub use ngram::{NgramError, NgramShape, ngram_rows};
pub use nonfinite_scan::nonfinite_scan;
pub use ple_gate::ple_gate;
pub use residual_add::{add_bias, residual_add};
pub use rms_norm::{rms_norm, rms_norm_streams};
pub use rope::{RopeAngles, RopeError, RopePairs, RopeTable, rope};
pub use sample::sample;
pub use swiglu::swiglu;
