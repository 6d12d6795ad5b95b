//! The specification: each operation in the dullest scalar form. It never gets faster.

#![forbid(unsafe_code)]
