//! The `llama` architecture: from a weight file's names to hyperparameters and weights.
//!
//! Source of names and defaults: the GGUF specification, and `llama-arch.cpp`, `llama-model.cpp`
//! of llama.cpp.

use kernels::cpu::kv::Heads;
use shared::limits::CONTEXT_LEN_MAX;

use super::keys::{Keys, LAYERS_MAX};
use super::parts::invalid;
use super::taker::Taker;
use super::vocabulary::{check_vocabulary, vocab_size};
use super::{Linear, WeightFile};
use crate::backend::Backend;
use crate::engine::EngineError;

/// Value of `general.architecture`.
pub(crate) const ARCH: &str = "llama";

const D_MODEL_MAX: u32 = 1 << 16;
const D_FF_MAX: u32 = 1 << 20;
const HEADS_MAX: u32 = 1024;
const HEAD_DIM_MAX: u32 = 1024;
const ROPE_BASE_DEFAULT: f64 = 10_000.0;

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

/// Reads and checks the hyperparameters.
pub(crate) fn hyperparameters(file: &WeightFile) -> Result<Hyperparameters, EngineError> {
    let path = file.path();
    let keys = Keys::new(&file.metadata, ARCH);
    let read = read(&keys, vocab_size(file)?);
    let hyper = read.map_err(|what| invalid(path, what))?;
    check_vocabulary(&file.metadata, hyper.vocab_size).map_err(|what| invalid(path, what))?;
    Ok(hyper)
}

fn read(keys: &Keys<'_>, vocab_size: usize) -> Result<Hyperparameters, String> {
    let n_layers = keys.count("block_count", None, LAYERS_MAX)?;
    let d_model = keys.count("embedding_length", None, D_MODEL_MAX)?;
    let d_ff = keys.count("feed_forward_length", None, D_FF_MAX)?;
    let n_heads = keys.count("attention.head_count", None, HEADS_MAX)?;
    let n_kv_heads = keys.count("attention.head_count_kv", Some(n_heads), HEADS_MAX)?;
    if !n_heads.is_multiple_of(n_kv_heads) {
        return Err(format!(
            "`llama.attention.head_count` is {n_heads}, which is no multiple of \
             `llama.attention.head_count_kv`, {n_kv_heads}"
        ));
    }
    let head_dim = head_dim(keys, d_model / n_heads)?;
    Heads::new(n_heads as usize, n_kv_heads as usize, head_dim as usize)
        .map_err(|error| error.to_string())?;
    let n_rot = keys.count("rope.dimension_count", Some(head_dim), head_dim)?;
    if !n_rot.is_multiple_of(2) {
        return Err(format!("`llama.rope.dimension_count` is {n_rot}, but must be even"));
    }
    Ok(Hyperparameters {
        n_layers: n_layers as usize,
        d_model: d_model as usize,
        d_ff: d_ff as usize,
        n_heads: n_heads as usize,
        n_kv_heads: n_kv_heads as usize,
        head_dim: head_dim as usize,
        n_rot: n_rot as usize,
        vocab_size,
        context_len: keys.count("context_length", None, CONTEXT_LEN_MAX)?,
        rms_eps: keys.number("attention.layer_norm_rms_epsilon", None, 1e-12, 0.1)?,
        rope_base: keys.number("rope.freq_base", Some(ROPE_BASE_DEFAULT), 1.0, 1e12)?,
        rope_scale: rope_scale(keys)?,
    })
}

fn head_dim(keys: &Keys<'_>, default: u32) -> Result<u32, String> {
    let default = (default > 0).then_some(default);
    let key = keys.count("attention.key_length", default, HEAD_DIM_MAX)?;
    let value = keys.count("attention.value_length", Some(key), HEAD_DIM_MAX)?;
    if key != value {
        return Err(format!(
            "`llama.attention.key_length` is {key} and `value_length` is {value}; this build \
             needs them equal"
        ));
    }
    Ok(key)
}

/// Linear scaling; its factor also stands under an older key.
fn rope_scale(keys: &Keys<'_>) -> Result<f32, String> {
    let kind = keys.metadata().str("llama.rope.scaling.type");
    match kind.map_err(|error| error.to_string())? {
        // Files with `rope_freqs.weight` name no kind; the factors are in the tensor.
        None | Some("none" | "llama3") => {
            let factor = keys.number("rope.scale_linear", Some(1.0), 1e-6, 1e6)?;
            Ok(1.0 / factor)
        }
        Some("linear") => Ok(1.0 / keys.number("rope.scaling.factor", None, 1e-6, 1e6)?),
        Some(other) => Err(format!(
            "its rope scaling is `{other}`; this build computes none, `linear` and `llama3`"
        )),
    }
}

/// Takes every tensor of the model from the file, and refuses a file that has others.
pub(crate) fn weights<B: Backend>(
    file: &mut WeightFile,
    hyper: &Hyperparameters,
) -> Result<Weights<B::Matrix, B::Vector>, EngineError> {
    let (d_model, vocab_size) = (hyper.d_model, hyper.vocab_size);
    let mut taker = Taker::<B>::new(file);
    let token_embd = taker.matrix("token_embd", vocab_size, d_model)?;
    let mut layers = Vec::with_capacity(hyper.n_layers);
    for index in 0..hyper.n_layers {
        layers.push(layer(&mut taker, hyper, index)?);
    }
    let output_norm = taker.vector("output_norm.weight", d_model)?;
    let output = match taker.has("output.weight") {
        true => Some(taker.linear("output", vocab_size, d_model)?),
        false => None,
    };
    let rope_factors = match taker.has("rope_freqs.weight") {
        true => Some(rope_factors(&mut taker, hyper.n_rot / 2)?),
        false => None,
    };
    file.check_all_taken(ARCH)?;
    Ok(Weights { token_embd, layers, output_norm, output, rope_factors })
}

fn layer<B: Backend>(
    taker: &mut Taker<'_, B>,
    hyper: &Hyperparameters,
    index: usize,
) -> Result<Layer<B::Matrix, B::Vector>, EngineError> {
    let (d_model, d_ff) = (hyper.d_model, hyper.d_ff);
    let (q_width, kv_width) = (hyper.q_width(), hyper.kv_width());
    let name = |part: &str| format!("blk.{index}.{part}");
    // Written by old converters: the frequencies, which follow from the metadata.
    taker.file.ignore(&name("attn_rot_embd.weight"));
    Ok(Layer {
        attn_norm: taker.vector(&name("attn_norm.weight"), d_model)?,
        attn_q: taker.linear(&name("attn_q"), q_width, d_model)?,
        attn_k: taker.linear(&name("attn_k"), kv_width, d_model)?,
        attn_v: taker.linear(&name("attn_v"), kv_width, d_model)?,
        attn_output: taker.linear(&name("attn_output"), d_model, q_width)?,
        ffn_norm: taker.vector(&name("ffn_norm.weight"), d_model)?,
        ffn_gate: taker.linear(&name("ffn_gate"), d_ff, d_model)?,
        ffn_up: taker.linear(&name("ffn_up"), d_ff, d_model)?,
        ffn_down: taker.linear(&name("ffn_down"), d_model, d_ff)?,
    })
}

/// Each factor divides a frequency, so none may be zero.
fn rope_factors<B: Backend>(
    taker: &mut Taker<'_, B>,
    count: usize,
) -> Result<Vec<f32>, EngineError> {
    let name = "rope_freqs.weight";
    let factors = taker.values(name, count)?;
    match factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
        None => Ok(factors),
        Some(bad) => Err(invalid(
            taker.file.path(),
            format!("tensor `{name}` holds {bad}; every factor must be positive"),
        )),
    }
}
