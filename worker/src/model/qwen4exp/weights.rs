//! From tensor names to [`Weights`].

use super::sizes::NGRAM_TABLE;
use super::{
    ARCH, FullAttention, Hyperparameters, Indexer, Layer, LayerKind, LinearAttention, Mix, Mixer,
    Moe, Ple, Weights,
};
use crate::backend::Backend;
use crate::engine::EngineError;
use crate::model::WeightFile;
use crate::model::parts::invalid;
use crate::model::taker::Taker;

type Of<B> = Weights<<B as Backend>::Matrix, <B as Backend>::Experts, <B as Backend>::Vector>;
type LayerOf<B> = Layer<<B as Backend>::Matrix, <B as Backend>::Experts, <B as Backend>::Vector>;
type MixOf<B> = Mix<<B as Backend>::Matrix, <B as Backend>::Vector>;
type MixerOf<B> = Mixer<<B as Backend>::Matrix, <B as Backend>::Vector>;
type MoeOf<B> = Moe<<B as Backend>::Matrix, <B as Backend>::Experts>;

/// Takes every tensor of the trunk. Those of a draft head inside the file are left for
/// [`super::draft_inside`], which comes next; then all must be taken.
pub(crate) fn weights<B: Backend>(
    file: &mut WeightFile,
    hyper: &Hyperparameters,
) -> Result<Of<B>, EngineError> {
    if let Some(ple) = &hyper.ple {
        let wanted = format!("blk.{}.ple_key.weight", ple.layer);
        if file.dims(&wanted).is_none() {
            let what = format!(
                "metadata key `{ARCH}.ple.layers` names layer {}, but tensor `{wanted}` is missing",
                ple.layer
            );
            return Err(invalid(file.path(), what));
        }
    }
    let (d_model, vocab_size) = (hyper.d_model, hyper.vocab_size);
    let mut taker = Taker::<B>::new(file);
    let token_embd = taker.matrix("token_embd", vocab_size, d_model)?;
    let mut layers = Vec::with_capacity(hyper.n_layers);
    for (index, &kind) in hyper.layers.iter().enumerate() {
        let ple = match &hyper.ple {
            Some(ple) if ple.layer == index => Some(self::ple(&mut taker, hyper, index)?),
            _ => None,
        };
        layers.push(Layer { ple, ..layer(&mut taker, hyper, kind, index)? });
    }
    let head = head_mix(&mut taker, hyper, "output_hc")?;
    let output = match taker.has("output.weight") {
        true => Some(taker.matrix("output", vocab_size, d_model)?),
        false => None,
    };
    let ngram_table = match &hyper.ple {
        None => None,
        Some(ple) => {
            let rows = usize::try_from(ple.n_table_rows).unwrap_or(usize::MAX);
            taker.file.scatter(NGRAM_TABLE);
            Some(taker.file.matrix(NGRAM_TABLE, rows, ple.row_width)?)
        }
    };
    Ok(Weights { token_embd, output, head, ngram_table, layers })
}

/// A layer without its n-gram embedding.
pub(super) fn layer<B: Backend>(
    taker: &mut Taker<'_, B>,
    hyper: &Hyperparameters,
    kind: LayerKind,
    index: usize,
) -> Result<LayerOf<B>, EngineError> {
    let name = |part: &str| format!("blk.{index}.{part}");
    let mixer = match kind {
        LayerKind::Full { compress_ratio } => full(taker, hyper, index, compress_ratio)?,
        LayerKind::Linear => linear(taker, hyper, index)?,
    };
    Ok(Layer {
        ple: None,
        hc_attn: mix(taker, hyper, &name("hc_attn"))?,
        mixer,
        hc_ffn: mix(taker, hyper, &name("hc_ffn"))?,
        moe: moe(taker, hyper, index)?,
    })
}

fn mix<B: Backend>(
    taker: &mut Taker<'_, B>,
    hyper: &Hyperparameters,
    stem: &str,
) -> Result<MixOf<B>, EngineError> {
    let inject = taker.matrix(&format!("{stem}_inject"), hyper.n_streams, hyper.wide())?;
    Ok(Mix { inject: Some(inject), ..head_mix(taker, hyper, stem)? })
}

/// A mix that adds nothing back.
pub(super) fn head_mix<B: Backend>(
    taker: &mut Taker<'_, B>,
    hyper: &Hyperparameters,
    stem: &str,
) -> Result<MixOf<B>, EngineError> {
    let (wide, rank) = (hyper.wide(), hyper.hyper_rank);
    let norm = format!("{stem}_norm.weight");
    // Some tools keep the gains as one row per stream.
    let norm = match taker.file.dims(&norm).is_some_and(|dims| dims.len() > 1 && dims[1] > 1) {
        true => taker.flat(&norm, hyper.n_streams, hyper.d_model)?,
        false => taker.vector(&norm, wide)?,
    };
    Ok(Mix {
        norm,
        down: taker.matrix(&format!("{stem}_down"), rank, wide)?,
        up: taker.matrix(&format!("{stem}_up"), wide, rank)?,
        inject: None,
    })
}

fn full<B: Backend>(
    taker: &mut Taker<'_, B>,
    hyper: &Hyperparameters,
    index: usize,
    compress_ratio: usize,
) -> Result<MixerOf<B>, EngineError> {
    let (d_model, q_width, kv_width) = (hyper.d_model, hyper.q_width(), hyper.kv_width());
    let name = |part: &str| format!("blk.{index}.{part}");
    let indexer_names = ["q_proj", "k_proj", "q_norm", "k_norm"];
    let indexer = match compress_ratio {
        0 => {
            for part in indexer_names {
                taker.file.ignore(&name(&format!("indexer.{part}.weight")));
            }
            None
        }
        _ => {
            let sizes = hyper.indexer;
            let width = sizes.n_heads * sizes.head_dim;
            Some(Indexer {
                q: taker.matrix(&name("indexer.q_proj"), width, d_model)?,
                k: taker.matrix(&name("indexer.k_proj"), sizes.head_dim, d_model)?,
                q_norm: taker.vector(&name("indexer.q_norm.weight"), sizes.head_dim)?,
                k_norm: taker.vector(&name("indexer.k_norm.weight"), sizes.head_dim)?,
            })
        }
    };
    Ok(Mixer::Full(Box::new(FullAttention {
        q: taker.matrix(&name("attn_q"), 2 * q_width, d_model)?,
        k: taker.matrix(&name("attn_k"), kv_width, d_model)?,
        v: taker.matrix(&name("attn_v"), kv_width, d_model)?,
        output: taker.matrix(&name("attn_output"), d_model, q_width)?,
        q_norm: taker.vector(&name("attn_q_norm.weight"), hyper.head_dim)?,
        k_norm: taker.vector(&name("attn_k_norm.weight"), hyper.head_dim)?,
        indexer,
    })))
}

fn linear<B: Backend>(
    taker: &mut Taker<'_, B>,
    hyper: &Hyperparameters,
    index: usize,
) -> Result<MixerOf<B>, EngineError> {
    let (d_model, n_heads) = (hyper.d_model, hyper.n_value_heads);
    let name = |part: &str| format!("blk.{index}.{part}");
    let a_name = name("ssm_a");
    let a = taker.values(&a_name, n_heads)?;
    if let Some(bad) = a.iter().find(|a| !(a.is_finite() && **a < 0.0)) {
        let what = format!("tensor `{a_name}` holds {bad}; every decay must be negative");
        return Err(invalid(taker.file.path(), what));
    }
    Ok(Mixer::Linear(Box::new(LinearAttention {
        qkv: taker.matrix(&name("attn_qkv"), hyper.qkv_width(), d_model)?,
        gate: taker.matrix(&name("attn_gate"), hyper.value_width(), d_model)?,
        alpha: taker.matrix(&name("ssm_alpha"), n_heads, d_model)?,
        beta: taker.matrix(&name("ssm_beta"), n_heads, d_model)?,
        a: B::place_vector(a)?,
        dt: taker.vector(&name("ssm_dt.bias"), n_heads)?,
        conv: taker.flat(&name("ssm_conv1d.weight"), hyper.qkv_width(), hyper.conv_kernel)?,
        norm: taker.vector(&name("ssm_norm.weight"), hyper.linear_head_dim)?,
        out: taker.matrix(&name("ssm_out"), d_model, hyper.value_width())?,
    })))
}

fn moe<B: Backend>(
    taker: &mut Taker<'_, B>,
    hyper: &Hyperparameters,
    index: usize,
) -> Result<MoeOf<B>, EngineError> {
    let (d_model, d_expert, d_shared) = (hyper.d_model, hyper.d_expert, hyper.d_shared);
    let n_experts = hyper.n_experts;
    let name = |part: &str| format!("blk.{index}.{part}");
    let fused = name("ffn_gate_up_exps");
    let (gate, up) = if taker.has(&format!("{fused}.weight")) {
        let both = taker.experts(&fused, n_experts, 2 * d_expert, d_model)?;
        (both.clone().part(0..d_expert), both.part(d_expert..2 * d_expert))
    } else {
        (
            taker.experts(&name("ffn_gate_exps"), n_experts, d_expert, d_model)?,
            taker.experts(&name("ffn_up_exps"), n_experts, d_expert, d_model)?,
        )
    };
    let down = taker.experts(&name("ffn_down_exps"), n_experts, d_model, d_expert)?;
    Ok(Moe {
        router: taker.matrix(&name("ffn_gate_inp"), n_experts, d_model)?,
        gate: B::place_experts(gate)?,
        up: B::place_experts(up)?,
        down: B::place_experts(down)?,
        shared_gate: taker.matrix(&name("ffn_gate_shexp"), d_shared, d_model)?,
        shared_up: taker.matrix(&name("ffn_up_shexp"), d_shared, d_model)?,
        shared_down: taker.matrix(&name("ffn_down_shexp"), d_model, d_shared)?,
        shared_scale: taker.matrix(&name("ffn_gate_inp_shexp"), 1, d_model)?,
    })
}

fn ple<B: Backend>(
    taker: &mut Taker<'_, B>,
    hyper: &Hyperparameters,
    index: usize,
) -> Result<Ple<B::Matrix, B::Vector>, EngineError> {
    let (d_model, wide) = (hyper.d_model, hyper.wide());
    let kernel = hyper.ple.as_ref().map_or(0, |ple| ple.conv_kernel);
    let name = |part: &str| format!("blk.{index}.{part}");
    Ok(Ple {
        key: taker.matrix(&name("ple_key"), wide, d_model)?,
        value: taker.matrix(&name("ple_value"), d_model, d_model)?,
        norm_key: taker.vector(&name("ple_norm_key.weight"), wide)?,
        norm_query: taker.vector(&name("ple_norm_query.weight"), wide)?,
        norm_conv: taker.vector(&name("ple_norm_conv.weight"), wide)?,
        conv: taker.flat(&name("ple_conv1d.weight"), wide, kernel)?,
    })
}
