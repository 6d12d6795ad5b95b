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

use kernels::cpu::kv::{Heads, KvFormat};
use kernels::cpu::{ConvShape, DeltaShape, Gate, IndexerShape, Precision, RopeTable};

use crate::engine::{EngineError, EngineOptions};
use crate::model::{Linear, MappedExperts, MappedMatrix};

/// Consecutive rows of one sequence in a pass.
#[derive(Debug)]
pub struct Span<'a, P, S> {
    /// Pages of one layer of the sequence, from position 0 on.
    pub pages: &'a [P],
    /// Position of the first row.
    pub start: usize,
    /// Rows, at least one.
    pub n_rows: usize,
    /// The positions that each row sees; `None` is all up to its own.
    pub selection: Option<&'a S>,
}

/// What a linear layer's rows bring to the delta rule.
#[derive(Debug)]
pub struct DeltaRows<'a, R, V> {
    /// Queries, keys and values after the convolution.
    pub qkv: &'a R,
    /// *Shapes*: `(n_tokens, n_value_heads)`.
    pub alpha: &'a R,
    /// Before the sigmoid. *Shapes*: `(n_tokens, n_value_heads)`.
    pub beta: &'a R,
    /// The layer's decays. *Shapes*: `(n_value_heads,)`.
    pub a: &'a V,
    /// *Shapes*: `(n_value_heads,)`.
    pub dt: &'a V,
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
    /// Numbers that a sequence carries from pass to pass, f32.
    type State: Debug;
    /// An indexer's keys of one layer of one sequence.
    type IndexerKeys: Debug;
    /// What the rows of a span see.
    type Selection: Debug + Default;
    /// Which experts the rows of a pass use.
    type Routing: Debug + Default;

    /// Starts the backend's threads or device.
    ///
    /// # Errors
    ///
    /// `Option` if the options cannot be computed with.
    fn open(options: &EngineOptions) -> Result<Self, EngineError>;

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
    fn page(&self, heads: Heads, format: KvFormat) -> Result<Self::Page, EngineError>;

    /// A state of zeros.
    ///
    /// # Errors
    ///
    /// `OutOfMemory`.
    fn state(&self, n_elements: usize) -> Result<Self::State, EngineError>;

    /// Sets a state to zeros.
    fn clear(&self, state: &mut Self::State);

    /// The keys of an indexer that has seen nothing.
    fn indexer_keys(&self, shape: IndexerShape) -> Self::IndexerKeys;

    /// Rows of the embedding, one per token.
    fn embed(&self, table: &Self::Matrix, tokens: &[u32], out: &mut Self::Rows);

    /// `out = x / rms(x) * weight`, per row.
    fn rms_norm(&self, x: &Self::Rows, weight: &Self::Vector, eps: f32, out: &mut Self::Rows);

    /// Takes rows into the form in which several `matmul`s will read them.
    fn load(&self, x: &Self::Rows, precision: Precision, out: &mut Self::Operand);

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
    fn angles(&self, table: &RopeTable, positions: &[u32], out: &mut Self::Angles);

    /// Rotates every head of every row.
    fn rope(&self, x: &mut Self::Rows, head_dim: usize, angles: &Self::Angles);

    /// Writes some rows of keys and values to a sequence's pages, from position `start` on.
    fn kv_append(
        &self,
        heads: Heads,
        pages: &mut [Self::Page],
        start: usize,
        rows: Range<usize>,
        keys: &Self::Rows,
        values: &Self::Rows,
    );

    /// Causal attention: each query over the keys of its own sequence up to its own position.
    /// `spans` cover the rows of `q` in order.
    fn attention(
        &self,
        heads: Heads,
        q: &Self::Rows,
        spans: &[Span<'_, Self::Page, Self::Selection>],
        out: &mut Self::Rows,
    );

    /// `out = silu(gate) * up`.
    fn swiglu(&self, gate: &Self::Rows, up: &Self::Rows, out: &mut Self::Rows);

    /// `x += y`.
    fn residual_add(&self, x: &mut Self::Rows, y: &Self::Rows);

    /// Rows of a table in the file, one after the other, `n_heads` of them in each row of `out`.
    fn embed_rows(&self, table: &MappedMatrix, rows: &[u64], n_heads: usize, out: &mut Self::Rows);

    /// `rms_norm` of each of the `n_streams` parts of a row.
    fn rms_norm_streams(
        &self,
        x: &Self::Rows,
        weight: &Self::Vector,
        n_streams: usize,
        eps: f32,
        out: &mut Self::Rows,
    );

    /// Every stream becomes the row.
    fn hyper_expand(&self, x: &Self::Rows, n_streams: usize, out: &mut Self::Rows);

    /// `x = silu(x / n_streams)`.
    fn hyper_silu(&self, x: &mut Self::Rows, n_streams: usize);

    /// The mean of the streams, each weighted by `sigmoid(gamma)`.
    fn hyper_mix(
        &self,
        normed: &Self::Rows,
        gamma: &Self::Rows,
        n_streams: usize,
        out: &mut Self::Rows,
    );

    /// `residual_c += 2 sigmoid(inject_c / n_streams) y`.
    fn hyper_add(
        &self,
        residual: &mut Self::Rows,
        y: &Self::Rows,
        inject: &Self::Rows,
        n_streams: usize,
    );

    /// Parts `[query | gate]` of each head.
    fn split_heads(
        &self,
        x: &Self::Rows,
        head_dim: usize,
        q: &mut Self::Rows,
        gate: &mut Self::Rows,
    );

    /// `x *= sigmoid(gate)`.
    fn sigmoid_mul(&self, x: &mut Self::Rows, gate: &Self::Rows);

    /// The gated value of the n-gram embedding, on every stream.
    fn ple_gate(
        &self,
        key: &Self::Rows,
        query: &Self::Rows,
        value: &Self::Rows,
        n_streams: usize,
        out: &mut Self::Rows,
    );

    /// Convolution over some rows of one sequence; `out` has as many rows as `x` already.
    fn causal_conv(
        &self,
        shape: ConvShape,
        x: &Self::Rows,
        rows: Range<usize>,
        weight: &Self::Vector,
        history: &mut Self::State,
        out: &mut Self::Rows,
    );

    /// The delta rule over some rows of one sequence; `out` has as many rows as the inputs already.
    fn delta_rule(
        &self,
        shape: DeltaShape,
        inputs: &DeltaRows<'_, Self::Rows, Self::Vector>,
        rows: Range<usize>,
        state: &mut Self::State,
        out: &mut Self::Rows,
    );

    /// `out = x / rms(x) * weight * gate(z)`, per head of the weight's width.
    fn gated_rms_norm(
        &self,
        x: &Self::Rows,
        weight: &Self::Vector,
        eps: f32,
        z: &Self::Rows,
        gate: Gate,
        out: &mut Self::Rows,
    );

    /// Takes the raw indexer keys of some rows of one sequence in.
    fn indexer_append(
        &self,
        keys: &mut Self::IndexerKeys,
        raw: &Self::Rows,
        rows: Range<usize>,
        norm: &Self::Vector,
        eps: f32,
        table: &RopeTable,
    );

    /// What some rows of one sequence see, the first of them at position `start`.
    fn indexer_select(
        &self,
        keys: &Self::IndexerKeys,
        start: usize,
        queries: &Self::Rows,
        rows: Range<usize>,
        out: &mut Self::Selection,
    );

    /// Drops the tokens from `length` on; gives back whether it could.
    fn indexer_truncate(&self, keys: &mut Self::IndexerKeys, length: usize) -> bool;

    /// The experts of each row.
    fn route(&self, logits: &Self::Rows, n_used: usize, out: &mut Self::Routing);

    /// `out = W_e x` for the experts `e` of each row.
    fn expert_matmul(
        &self,
        weight: &Self::Experts,
        routing: &Self::Routing,
        x: &mut Self::Operand,
        out: &mut Self::Rows,
    );

    /// The experts' weighted sum, and the shared one's.
    fn moe_combine(
        &self,
        routing: &Self::Routing,
        experts: &Self::Rows,
        shared: &Self::Rows,
        gate: &Self::Rows,
        out: &mut Self::Rows,
    );

    /// Sets the number of rows in use; what new ones hold is not said.
    fn resize(&self, x: &mut Self::Rows, n_rows: usize);

    /// Keeps the rows of these rising indices, in order, and drops the others.
    fn keep_rows(&self, x: &mut Self::Rows, kept: &[usize]);

    /// The first element of a row that is not finite.
    fn nonfinite_scan(&self, x: &Self::Rows, row: usize) -> Option<usize>;

    /// The rows, in host memory.
    fn read<'a>(&'a self, x: &'a Self::Rows) -> &'a [f32];
}
