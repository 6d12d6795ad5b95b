//! What a model is: its hyperparameters and its named weights with their shapes.
//!
//! One submodule per architecture translates the names of a weight file, once; the next one
//! (`qwen4exp`) gets its own beside `llama`. Weights are generic over the backend, which decides
//! what a matrix is: in memory the file's own pages, on a device its copy there.

pub(crate) mod llama;
mod load;
mod parts;

pub use load::MappedMatrix;

pub(crate) use load::WeightFile;

/// Sizes and constants of a `llama` model, all within bounds and consistent with each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Hyperparameters {
    /// Layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width inside the feed-forward block.
    pub d_ff: usize,
    /// Query heads, a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// How many of a head's first elements are rotated; even.
    pub n_rot: usize,
    /// Rows of the output matrix.
    pub vocab_size: usize,
    /// Longest context the model was made for, in tokens.
    pub context_len: u32,
    /// Added to the mean square in `rms_norm`.
    pub rms_eps: f32,
    /// Base of the rotation's frequencies.
    pub rope_base: f32,
    /// Positions are multiplied by this before they are rotated (linear scaling; 1 is none).
    pub rope_scale: f32,
}

impl Hyperparameters {
    /// Width of all query heads together.
    #[must_use]
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
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

/// The weights of one layer. `M` is the backend's matrix, `V` its vector.
#[derive(Debug)]
pub struct Layer<M, V> {
    /// *Shapes*: `(d_model,)`.
    pub attn_norm: V,
    /// *Shapes*: `(n_heads * head_dim, d_model)`.
    pub attn_q: Linear<M, V>,
    /// *Shapes*: `(n_kv_heads * head_dim, d_model)`.
    pub attn_k: Linear<M, V>,
    /// *Shapes*: `(n_kv_heads * head_dim, d_model)`.
    pub attn_v: Linear<M, V>,
    /// *Shapes*: `(d_model, n_heads * head_dim)`.
    pub attn_output: Linear<M, V>,
    /// *Shapes*: `(d_model,)`.
    pub ffn_norm: V,
    /// *Shapes*: `(d_ff, d_model)`.
    pub ffn_gate: Linear<M, V>,
    /// *Shapes*: `(d_ff, d_model)`.
    pub ffn_up: Linear<M, V>,
    /// *Shapes*: `(d_model, d_ff)`.
    pub ffn_down: Linear<M, V>,
}

/// The weights of a `llama` model.
#[derive(Debug)]
pub struct Weights<M, V> {
    /// *Shapes*: `(vocab_size, d_model)`.
    pub token_embd: M,
    /// In order.
    pub layers: Vec<Layer<M, V>>,
    /// *Shapes*: `(d_model,)`.
    pub output_norm: V,
    /// *Shapes*: `(vocab_size, d_model)`. `None` if the embedding serves here too.
    pub output: Option<Linear<M, V>>,
    /// Divisors of the rotation's frequencies. *Shapes*: `(n_rot / 2,)`.
    pub rope_factors: Option<Vec<f32>>,
}
