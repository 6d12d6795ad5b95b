//! What a model is: its hyperparameters and its named weights with their shapes.
//!
//! One submodule per architecture translates the names of a weight file, once. Weights are generic
//! over the backend, which decides what a matrix is: in memory the file's own pages, on a device
//! its copy there.

mod keys;
pub(crate) mod llama;
mod load;
mod parts;
pub(crate) mod qwen4exp;
mod taker;
mod vocabulary;

pub use load::{MappedExperts, MappedMatrix};

pub(crate) use load::WeightFile;
pub(crate) use vocabulary::{bos, name};

/// A linear layer: `y = W x + b`.
#[derive(Debug)]
pub struct Linear<M, V> {
    /// *Shapes*: `(n_out, n_in)`.
    pub weight: M,
    /// *Shapes*: `(n_out,)`.
    pub bias: Option<V>,
}
