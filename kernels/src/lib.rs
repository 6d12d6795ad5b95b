//! All arithmetic of Strata: block formats, CPU kernels and their scalar references.
//!
//! Owns every operation a forward pass needs, one file per operation and place: `reference/<op>.rs`
//! is the specification in the dullest scalar form, `cpu/<op>.rs` the fast version. Knows nothing
//! of models, files, processes or requests; its counterpart is `worker/src/backend/cpu.rs`, which
//! calls it.
//!
//! Invariants:
//! - *Order-stable.* A row's result never depends on how many rows are computed with it, nor on the
//!   number of threads. Tests compare bits.
//! - *Nothing is hidden.* A NaN or an infinity in an operand appears in every result it touches.
//! - *No undefined behaviour from safe calls.* Shapes are asserted before the first `unsafe` line.
//!
//! Activations are `f32`, row-major `(n_tokens, width)`, in host memory, unless a doc says
//! otherwise.

#![deny(unsafe_code)]

pub mod cpu;
pub mod error;
pub mod format;
pub mod isa;
pub mod reference;
pub mod tensor;

pub use cpu::pool;
