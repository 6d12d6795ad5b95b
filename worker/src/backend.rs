//! What computes: the operations of a forward pass, over memory that the backend owns.
//!
//! Dispatch is static: the engine is compiled once for each backend, and no trait object stands in
//! the token path. [`Cpu`] is the embedded default; a device's backend gets its own submodule
//! beside it and its own types for matrices, rows and pages.
//!
//! Every operation sets the number of rows of its output to that of its input. All are
//! order-stable: a row of the output depends on its own row of the input and on nothing else.

mod cpu;

pub use cpu::Cpu;

use std::fmt::Debug;
use std::ops::Range;

use crate::engine::{EngineError, EngineOptions};
use crate::model::llama::Hyperparameters;
use crate::model::{Linear, MappedExperts, MappedMatrix};

/// Consecutive rows of one sequence in a pass.
#[derive(Debug)]
pub struct Span<'a, P> {
    /// Pages of one layer of the sequence, from position 0 on.
    pub pages: &'a [P],
    /// Position of the first row.
    pub start: usize,
    /// Rows, at least one.
    pub n_rows: usize,
}

/// The operations of the forward pass; formulas and shapes are those of [`kernels`].
pub trait Backend: Debug + Sized {
    /// A weight matrix where this backend computes.
    type Matrix: Debug;
    /// The matrices of a layer's experts.
    type Experts: Debug;
    /// A weight vector.
    type Vector: Debug;
    /// Rows of activations, f32: a fixed width, a number of rows up to a maximum.
    type Rows: Debug;
    /// Rows in the form in which `matmul` takes them.
    type Operand: Debug + Default;
    /// Sines and cosines for the rows of a pass.
    type Angles: Debug + Default;
    /// Keys and values of [`crate::kv_cache::PAGE_LEN`] positions.
    type Page: Debug;

    /// Starts the backend's threads or device for a model of these sizes.
    ///
    /// # Errors
    ///
    /// `Option` if the options or the sizes cannot be computed with.
    fn open(
        hyper: &Hyperparameters,
        rope_factors: Option<&[f32]>,
        options: &EngineOptions,
    ) -> Result<Self, EngineError>;

    /// Compute threads in use.
    fn threads(&self) -> usize;

    /// Name of what computes.
    fn instruction_set(&self) -> &str;

    /// Makes a matrix of the weight file ready for use.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` or `Backend`.
    fn place_matrix(mapped: MappedMatrix) -> Result<Self::Matrix, EngineError>;

    /// Makes the matrices of a layer's experts ready for use.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` or `Backend`.
    fn place_experts(mapped: MappedExperts) -> Result<Self::Experts, EngineError>;

    /// Makes a vector ready for use.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` or `Backend`.
    fn place_vector(values: Vec<f32>) -> Result<Self::Vector, EngineError>;

    /// Room for rows of activations, none of them in use yet.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`.
    fn rows(&self, n_rows_max: usize, width: usize) -> Result<Self::Rows, EngineError>;

    /// Makes room for at least `n_rows_max` rows; those in use may be lost.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`.
    fn reserve(&self, x: &mut Self::Rows, n_rows_max: usize) -> Result<(), EngineError>;

    /// An empty page.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`.
    fn page(&self) -> Result<Self::Page, EngineError>;

    /// Rows of the embedding, one per token.
    fn embed(&self, table: &Self::Matrix, tokens: &[u32], out: &mut Self::Rows);

    /// `out = x / rms(x) * weight`, per row.
    fn rms_norm(&self, x: &Self::Rows, weight: &Self::Vector, out: &mut Self::Rows);

    /// Takes rows into the form in which several `matmul`s will read them.
    fn load(&self, x: &Self::Rows, out: &mut Self::Operand);

    /// `out = W x + b`, per row.
    fn linear(
        &self,
        layer: &Linear<Self::Matrix, Self::Vector>,
        x: &mut Self::Operand,
        out: &mut Self::Rows,
    );

    /// `out = W x`, per row.
    fn matmul(&self, weight: &Self::Matrix, x: &mut Self::Operand, out: &mut Self::Rows);

    /// The rotation's angles for the rows of a pass.
    fn angles(&self, positions: &[u32], out: &mut Self::Angles);

    /// Rotates every head of every row.
    fn rope(&self, x: &mut Self::Rows, angles: &Self::Angles);

    /// Writes some rows of keys and values to a sequence's pages, from position `start` on.
    fn kv_append(
        &self,
        pages: &mut [Self::Page],
        start: usize,
        rows: Range<usize>,
        keys: &Self::Rows,
        values: &Self::Rows,
    );

    /// Causal attention: each query over the keys of its own sequence up to its own position.
    /// `spans` cover the rows of `q` in order.
    fn attention(&self, q: &Self::Rows, spans: &[Span<'_, Self::Page>], out: &mut Self::Rows);

    /// `out = silu(gate) * up`.
    fn swiglu(&self, gate: &Self::Rows, up: &Self::Rows, out: &mut Self::Rows);

    /// `x += y`.
    fn residual_add(&self, x: &mut Self::Rows, y: &Self::Rows);

    /// Keeps the rows of these rising indices, in order, and drops the others.
    fn keep_rows(&self, x: &mut Self::Rows, kept: &[usize]);

    /// The first element of a row that is not finite.
    fn nonfinite_scan(&self, x: &Self::Rows, row: usize) -> Option<usize>;

    /// The rows, in host memory.
    fn read<'a>(&'a self, x: &'a Self::Rows) -> &'a [f32];
}
