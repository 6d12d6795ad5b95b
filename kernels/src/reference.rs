//! The specification: each operation in the dullest scalar form. It never gets faster.

#![forbid(unsafe_code)]

pub mod attention;
pub mod attention_gate;
pub mod causal_conv;
pub mod delta_rule;
pub mod dequantize;
pub mod embed;
pub mod gated_rms_norm;
pub mod hyper;
pub mod indexer;
pub mod kv_append;
pub mod matmul;
pub mod moe;
pub mod ngram;
pub mod nonfinite_scan;
pub mod ple_gate;
pub mod residual_add;
pub mod rms_norm;
pub mod rope;
pub mod sample;
pub mod swiglu;
