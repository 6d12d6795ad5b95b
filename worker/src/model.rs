//! What a model is: its hyperparameters and its named weights with their shapes.
//!
//! One submodule per architecture translates the names of a weight file, once. Weights are generic
//! over the backend, which decides what a matrix is: in memory the file's own pages, on a device
//! its copy there.

mod keys;
pub mod llama;
mod load;
mod parts;
pub mod qwen4exp;
mod taker;
mod vocabulary;

pub use load::{MappedExperts, MappedMatrix};

use crate::engine::EngineError;

pub(crate) use load::WeightFile;
pub(crate) use vocabulary::{bos, name};

/// The sizes of a model of any architecture.
#[derive(Debug, Clone)]
pub(crate) enum Sizes {
    Llama(Box<llama::Hyperparameters>),
    Qwen4Exp(Box<qwen4exp::Hyperparameters>),
}

/// Reads the sizes of whatever the file holds.
pub(crate) fn sizes(file: &WeightFile) -> Result<Sizes, EngineError> {
    let arch = shared::model_files::check_architecture(&file.metadata)
        .map_err(|what| parts::invalid(file.path(), what))?;
    match arch {
        qwen4exp::ARCH => Ok(Sizes::Qwen4Exp(Box::new(qwen4exp::hyperparameters(file)?))),
        _ => Ok(Sizes::Llama(Box::new(llama::hyperparameters(file)?))),
    }
}

/// What is suspicious about a file that can be computed, one sentence each.
pub(crate) fn warnings(file: &WeightFile, sizes: &Sizes) -> Vec<String> {
    match sizes {
        Sizes::Llama(_) => Vec::new(),
        Sizes::Qwen4Exp(hyper) => qwen4exp::warnings(file, hyper),
    }
}

impl Sizes {
    /// Value of `general.architecture`.
    pub(crate) fn arch(&self) -> &'static str {
        match self {
            Self::Llama(_) => llama::ARCH,
            Self::Qwen4Exp(_) => qwen4exp::ARCH,
        }
    }

    /// Longest context the model was made for, in tokens.
    pub(crate) fn context_len(&self) -> u32 {
        match self {
            Self::Llama(hyper) => hyper.context_len,
            Self::Qwen4Exp(hyper) => hyper.context_len,
        }
    }

    /// Rows of the output matrix.
    pub(crate) fn vocab_size(&self) -> usize {
        match self {
            Self::Llama(hyper) => hyper.vocab_size,
            Self::Qwen4Exp(hyper) => hyper.vocab_size,
        }
    }
}

/// A linear layer: `y = W x + b`.
#[derive(Debug)]
pub struct Linear<M, V> {
    /// *Shapes*: `(n_out, n_in)`.
    pub weight: M,
    /// *Shapes*: `(n_out,)`.
    pub bias: Option<V>,
}
