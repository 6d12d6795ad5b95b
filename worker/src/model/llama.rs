//! The `llama` architecture: from a weight file's names to hyperparameters and weights.
//!
//! Source of names and defaults: the GGUF specification, and `llama-arch.cpp`, `llama-model.cpp`
//! of llama.cpp.

use std::marker::PhantomData;

use kernels::cpu::kv::Heads;
use shared::gguf::{GgufError, Metadata};
use shared::ids::TokenId;
use shared::limits::{CONTEXT_LEN_MAX, VOCAB_SIZE_MAX};
use shared::model_files::check_architecture;

use super::parts::{invalid, refused};
use super::{Hyperparameters, Layer, Linear, MappedMatrix, WeightFile, Weights};
use crate::backend::Backend;
use crate::engine::EngineError;

/// Value of `general.architecture`.
pub(crate) const ARCH: &str = "llama";

const LAYERS_MAX: u32 = 1024;
const D_MODEL_MAX: u32 = 1 << 16;
const D_FF_MAX: u32 = 1 << 20;
const HEADS_MAX: u32 = 1024;
const HEAD_DIM_MAX: u32 = 1024;
const ROPE_BASE_DEFAULT: f64 = 10_000.0;

/// Reads and checks the hyperparameters.
pub(crate) fn hyperparameters(file: &WeightFile) -> Result<Hyperparameters, EngineError> {
    let path = file.path();
    check_architecture(&file.metadata).map_err(|what| invalid(path, what))?;
    let sizes = Sizes { metadata: &file.metadata };
    let read = sizes.read(vocab_size(file)?);
    let hyper = read.map_err(|what| invalid(path, what))?;
    check_vocabulary(&file.metadata, hyper.vocab_size).map_err(|what| invalid(path, what))?;
    Ok(hyper)
}

/// The name the file gives the model, or nothing.
pub(crate) fn name(file: &WeightFile) -> Result<String, EngineError> {
    let name = file.metadata.str("general.name");
    let name = name.map_err(|error| refused(file.path(), &error))?;
    Ok(name.unwrap_or_default().to_owned())
}

/// The token a sequence starts with, if the model's tokenizer adds one.
///
/// Without a word in the file only the SentencePiece-style tokenizer adds it, as in llama.cpp.
pub(crate) fn bos(file: &WeightFile) -> Result<Option<TokenId>, EngineError> {
    let metadata = &file.metadata;
    let read = || -> Result<Option<TokenId>, GgufError> {
        let kind = metadata.str("tokenizer.ggml.model")?;
        let is_added = metadata.bool("tokenizer.ggml.add_bos_token")?;
        if !is_added.unwrap_or(kind == Some("llama")) {
            return Ok(None);
        }
        let default = (kind == Some("llama")).then_some(1);
        Ok(metadata.u32("tokenizer.ggml.bos_token_id")?.or(default).map(TokenId))
    };
    read().map_err(|error| refused(file.path(), &error))
}

/// The vocabulary is what the embedding has rows for.
fn vocab_size(file: &WeightFile) -> Result<usize, EngineError> {
    let name = "token_embd.weight";
    let Some(dims) = file.dims(name) else {
        return Err(invalid(file.path(), format!("tensor `{name}` is missing")));
    };
    match dims.get(1).map(|&rows| usize::try_from(rows)) {
        Some(Ok(rows)) if rows <= VOCAB_SIZE_MAX => Ok(rows),
        _ => Err(invalid(
            file.path(),
            format!(
                "tensor `{name}` has the shape {dims:?}; its second size is the vocabulary's, \
                 which must be between 1 and {VOCAB_SIZE_MAX}"
            ),
        )),
    }
}

fn check_vocabulary(metadata: &Metadata, vocab_size: usize) -> Result<(), String> {
    let key = "tokenizer.ggml.tokens";
    let tokens = metadata.strings(key).map_err(|error| error.to_string())?;
    match tokens {
        Some(tokens) if tokens.len() != vocab_size => Err(format!(
            "metadata key `{key}` lists {} tokens, but the embedding has {vocab_size} rows",
            tokens.len()
        )),
        _ => Ok(()),
    }
}

/// Typed and bounded reads of `llama.*` keys.
struct Sizes<'a> {
    metadata: &'a Metadata,
}

impl Sizes<'_> {
    fn read(&self, vocab_size: usize) -> Result<Hyperparameters, String> {
        let n_layers = self.count("block_count", None, LAYERS_MAX)?;
        let d_model = self.count("embedding_length", None, D_MODEL_MAX)?;
        let d_ff = self.count("feed_forward_length", None, D_FF_MAX)?;
        let n_heads = self.count("attention.head_count", None, HEADS_MAX)?;
        let n_kv_heads = self.count("attention.head_count_kv", Some(n_heads), HEADS_MAX)?;
        if !n_heads.is_multiple_of(n_kv_heads) {
            return Err(format!(
                "`llama.attention.head_count` is {n_heads}, which is no multiple of \
                 `llama.attention.head_count_kv`, {n_kv_heads}"
            ));
        }
        let head_dim = self.head_dim(d_model / n_heads)?;
        Heads::new(n_heads as usize, n_kv_heads as usize, head_dim as usize)
            .map_err(|error| error.to_string())?;
        let n_rot = self.count("rope.dimension_count", Some(head_dim), head_dim)?;
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
            context_len: self.count("context_length", None, CONTEXT_LEN_MAX)?,
            rms_eps: self.number("attention.layer_norm_rms_epsilon", None, 1e-12, 0.1)?,
            rope_base: self.number("rope.freq_base", Some(ROPE_BASE_DEFAULT), 1.0, 1e12)?,
            rope_scale: self.rope_scale()?,
        })
    }

    fn head_dim(&self, default: u32) -> Result<u32, String> {
        let default = (default > 0).then_some(default);
        let key = self.count("attention.key_length", default, HEAD_DIM_MAX)?;
        let value = self.count("attention.value_length", Some(key), HEAD_DIM_MAX)?;
        if key != value {
            return Err(format!(
                "`llama.attention.key_length` is {key} and `value_length` is {value}; this build \
                 needs them equal"
            ));
        }
        Ok(key)
    }

    /// Linear scaling; its factor also stands under an older key.
    fn rope_scale(&self) -> Result<f32, String> {
        let kind = self.metadata.str("llama.rope.scaling.type");
        match kind.map_err(|error| error.to_string())? {
            // Files with `rope_freqs.weight` name no kind; the factors are in the tensor.
            None | Some("none" | "llama3") => {
                let factor = self.number("rope.scale_linear", Some(1.0), 1e-6, 1e6)?;
                Ok(1.0 / factor)
            }
            Some("linear") => Ok(1.0 / self.number("rope.scaling.factor", None, 1e-6, 1e6)?),
            Some(other) => Err(format!(
                "its rope scaling is `{other}`; this build computes none, `linear` and `llama3`"
            )),
        }
    }

    fn count(&self, key: &str, default: Option<u32>, most: u32) -> Result<u32, String> {
        let key = format!("{ARCH}.{key}");
        let found = self.metadata.u32(&key).map_err(|error| error.to_string())?;
        match found.or(default) {
            Some(value) if (1..=most).contains(&value) => Ok(value),
            Some(value) => {
                Err(format!("metadata key `{key}` is {value}, but must be between 1 and {most}"))
            }
            None => Err(format!("metadata key `{key}` is missing")),
        }
    }

    fn number(&self, key: &str, default: Option<f64>, low: f64, high: f64) -> Result<f32, String> {
        let key = format!("{ARCH}.{key}");
        let found = self.metadata.f64(&key).map_err(|error| error.to_string())?;
        match found.or(default) {
            Some(value) if (low..=high).contains(&value) => Ok(to_f32(value)),
            Some(value) => Err(format!(
                "metadata key `{key}` is {value}, but must be between {low} and {high}"
            )),
            None => Err(format!("metadata key `{key}` is missing")),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "kernels compute in f32; the value is bounded")]
fn to_f32(value: f64) -> f32 {
    value as f32
}

/// Takes every tensor of the model from the file, and refuses a file that has others.
pub(crate) fn weights<B: Backend>(
    file: &mut WeightFile,
    hyper: &Hyperparameters,
) -> Result<Weights<B::Matrix, B::Vector>, EngineError> {
    let (d_model, vocab_size) = (hyper.d_model, hyper.vocab_size);
    let mut taker = Taker::<B> { file, backend: PhantomData };
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

/// Hands tensors of the file to the backend.
struct Taker<'a, B> {
    file: &'a mut WeightFile,
    backend: PhantomData<B>,
}

impl<B: Backend> Taker<'_, B> {
    fn has(&self, name: &str) -> bool {
        self.file.dims(name).is_some()
    }

    fn matrix(&mut self, stem: &str, rows: usize, cols: usize) -> Result<B::Matrix, EngineError> {
        let mapped = self.file.matrix(&format!("{stem}.weight"), rows, cols)?;
        B::place_matrix(mapped)
    }

    fn linear(
        &mut self,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Linear<B::Matrix, B::Vector>, EngineError> {
        let weight = self.matrix(stem, rows, cols)?;
        let bias_name = format!("{stem}.bias");
        let bias = match self.has(&bias_name) {
            true => Some(self.vector(&bias_name, rows)?),
            false => None,
        };
        Ok(Linear { weight, bias })
    }

    fn vector(&mut self, name: &str, count: usize) -> Result<B::Vector, EngineError> {
        let values = self.values(name, count)?;
        B::place_vector(values)
    }

    /// The elements of a small tensor, whatever it is stored as.
    fn values(&mut self, name: &str, count: usize) -> Result<Vec<f32>, EngineError> {
        let mapped: MappedMatrix = self.file.matrix(name, 1, count)?;
        let mut values = vec![0.0; count];
        kernels::cpu::embed(&mapped.view(), &[0], &mut values);
        Ok(values)
    }
}
