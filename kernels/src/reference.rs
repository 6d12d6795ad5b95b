//! The specification: each operation in the dullest scalar form. It never gets faster.

#![forbid(unsafe_code)]

pub mod attention;
pub mod dequantize;
pub mod embed;
pub mod kv_append;
pub mod matmul;
pub mod nonfinite_scan;
pub mod residual_add;
pub mod rms_norm;
pub mod rope;
pub mod sample;
pub mod swiglu;
