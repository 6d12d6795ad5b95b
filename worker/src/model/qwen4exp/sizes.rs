//! From `qwen4exp.*` keys to [`Hyperparameters`].

use kernels::cpu::kv::Heads;
use shared::limits::CONTEXT_LEN_MAX;

use super::{ARCH, Hyperparameters, IndexerSizes, LayerKind, PleSizes};
use crate::engine::EngineError;
use crate::model::WeightFile;
use crate::model::keys::{Keys, LAYERS_MAX};
use crate::model::parts::invalid;
use crate::model::vocabulary::{check_vocabulary, vocab_size};

const D_MODEL_MAX: u32 = 1 << 16;
const D_FF_MAX: u32 = 1 << 20;
const HEADS_MAX: u32 = 1024;
const HEAD_DIM_MAX: u32 = 1024;
const EXPERTS_MAX: u32 = 1 << 14;
const STREAMS_MAX: u32 = 16;
const CONV_KERNEL_MAX: u32 = 16;
const NGRAM_MAX: u32 = 8;
const NGRAM_HEADS_MAX: u32 = 64;

/// The table of the n-gram embedding.
pub(super) const NGRAM_TABLE: &str = "per_layer_token_embd.weight";

/// Reads and checks the hyperparameters.
pub(crate) fn hyperparameters(file: &WeightFile) -> Result<Hyperparameters, EngineError> {
    let keys = Keys::new(&file.metadata, ARCH);
    // A file with the draft head alone has no embedding: the trunk's serves.
    let vocab_size = match file.dims("token_embd.weight") {
        None if keys.has("nextn_predict_layers") => 0,
        _ => vocab_size(file)?,
    };
    let table_rows = file.dims(NGRAM_TABLE).map(|dims| dims.get(1).copied().unwrap_or(1));
    let read = || -> Result<Hyperparameters, String> {
        let hyper = read(&keys, vocab_size, table_rows)?;
        if vocab_size > 0 {
            check_vocabulary(&file.metadata, vocab_size)?;
        }
        Ok(hyper)
    };
    read().map_err(|what| invalid(file.path(), what))
}

fn read(
    keys: &Keys<'_>,
    vocab_size: usize,
    table_rows: Option<u64>,
) -> Result<Hyperparameters, String> {
    let n_blocks = keys.size("block_count", LAYERS_MAX)?;
    let mut layers = layer_kinds(keys, n_blocks)?;
    let draft = draft_kind(keys, &mut layers)?;
    let (n_heads, n_kv_heads, head_dim) = heads(keys)?;
    let n_rot = rotary_width(keys, head_dim)?;
    let n_key_heads = keys.size("ssm.group_count", HEADS_MAX)?;
    let n_value_heads = keys.size("ssm.time_step_rank", HEADS_MAX)?;
    if !n_value_heads.is_multiple_of(n_key_heads) {
        return Err(format!(
            "metadata key `{}` is {n_value_heads}, which is no multiple of `{}`, {n_key_heads}",
            keys.name("ssm.time_step_rank"),
            keys.name("ssm.group_count")
        ));
    }
    let linear_head_dim = keys.size("ssm.state_size", HEAD_DIM_MAX)?;
    same(keys, "ssm.inner_size", n_value_heads * linear_head_dim, "the value heads' widths")?;
    let n_experts = keys.size("expert_count", EXPERTS_MAX)?;
    let most_used = u32::try_from(n_experts).unwrap_or(EXPERTS_MAX);
    let hyper = Hyperparameters {
        n_layers: layers.len(),
        d_model: keys.size("embedding_length", D_MODEL_MAX)?,
        vocab_size,
        context_len: keys.count("context_length", None, CONTEXT_LEN_MAX)?,
        rms_eps: keys.number("attention.layer_norm_rms_epsilon", None, 1e-12, 0.1)?,
        n_heads,
        n_kv_heads,
        head_dim,
        n_rot,
        rope_base: keys.number("rope.freq_base", None, 1.0, 1e12)?,
        n_key_heads,
        n_value_heads,
        linear_head_dim,
        conv_kernel: keys.size("ssm.conv_kernel", CONV_KERNEL_MAX)?,
        n_experts,
        n_experts_used: keys.size("expert_used_count", most_used)?,
        d_expert: keys.size("expert_feed_forward_length", D_FF_MAX)?,
        d_shared: keys.size("expert_shared_feed_forward_length", D_FF_MAX)?,
        n_streams: keys.size("hyper_connection.count", STREAMS_MAX)?,
        hyper_rank: keys.size("hyper_connection.low_rank", D_MODEL_MAX)?,
        indexer: IndexerSizes {
            n_heads: keys.size("attention.indexer.head_count", HEADS_MAX)?,
            head_dim: keys.size("attention.indexer.key_length", HEAD_DIM_MAX)?,
            budget: keys.size("attention.indexer.top_k", CONTEXT_LEN_MAX)?,
        },
        layers,
        ple: None,
        draft,
    };
    check_indexer(keys, &hyper)?;
    let ple = ple(keys, &hyper, table_rows)?;
    Ok(Hyperparameters { ple, ..hyper })
}

/// A number that follows from others must say the same.
fn same(keys: &Keys<'_>, key: &str, wanted: usize, why: &str) -> Result<(), String> {
    let found = keys.size(key, u32::MAX)?;
    match found == wanted {
        true => Ok(()),
        false => {
            Err(format!("metadata key `{}` is {found}, but {why} make {wanted}", keys.name(key)))
        }
    }
}

fn layer_kinds(keys: &Keys<'_>, n_blocks: usize) -> Result<Vec<LayerKind>, String> {
    let most = u32::try_from(n_blocks).unwrap_or(LAYERS_MAX);
    let interval = keys.size("full_attention_interval", most)?;
    let recurrent = keys.flags("attention.recurrent_layers", n_blocks)?;
    let ratios = keys.integers("attention.compress_ratios", n_blocks)?;
    let n_trunk = n_blocks - usize::from(has_draft(keys)?);
    let mut kinds = Vec::with_capacity(n_blocks);
    for (index, (&is_recurrent, &ratio)) in recurrent.iter().zip(&ratios).enumerate() {
        let is_full = index >= n_trunk || (index + 1).is_multiple_of(interval);
        if is_full == is_recurrent {
            return Err(format!(
                "metadata key `{}` and `{}`, {interval}, contradict each other at block {index}",
                keys.name("attention.recurrent_layers"),
                keys.name("full_attention_interval")
            ));
        }
        let is_small = ratio <= u64::from(CONTEXT_LEN_MAX);
        if !is_small || (is_recurrent && ratio != 0) {
            return Err(format!(
                "metadata key `{}` gives {ratio} for block {index}, which has {}",
                keys.name("attention.compress_ratios"),
                if is_small { "no attention to compress" } else { "no such context" }
            ));
        }
        let compress_ratio = usize::try_from(ratio).unwrap_or(0);
        kinds.push(match is_recurrent {
            true => LayerKind::Linear,
            false => LayerKind::Full { compress_ratio },
        });
    }
    Ok(kinds)
}

fn has_draft(keys: &Keys<'_>) -> Result<bool, String> {
    Ok(keys.has("nextn_predict_layers") && keys.count("nextn_predict_layers", None, 1)? == 1)
}

/// Takes the draft head's block off the end, if the file counts one.
fn draft_kind(keys: &Keys<'_>, kinds: &mut Vec<LayerKind>) -> Result<Option<LayerKind>, String> {
    if !has_draft(keys)? {
        return Ok(None);
    }
    let kind = kinds.pop();
    match kind {
        Some(LayerKind::Full { .. }) if !kinds.is_empty() => Ok(kind),
        _ => Err(format!(
            "metadata key `{}` leaves no layer beside the draft head",
            keys.name("block_count")
        )),
    }
}

fn heads(keys: &Keys<'_>) -> Result<(usize, usize, usize), String> {
    let n_heads = keys.size("attention.head_count", HEADS_MAX)?;
    let n_kv_heads = keys.size("attention.head_count_kv", HEADS_MAX)?;
    let head_dim = keys.size("attention.key_length", HEAD_DIM_MAX)?;
    same(keys, "attention.value_length", head_dim, "the keys' widths")?;
    Heads::new(n_heads, n_kv_heads, head_dim).map_err(|error| {
        format!(
            "metadata keys `{}`, `{}`, `{}`: {error}",
            keys.name("attention.head_count"),
            keys.name("attention.head_count_kv"),
            keys.name("attention.key_length")
        )
    })?;
    Ok((n_heads, n_kv_heads, head_dim))
}

/// Sections give each pair its position number; text has one number, so only their sum matters.
fn rotary_width(keys: &Keys<'_>, head_dim: usize) -> Result<usize, String> {
    let most = u32::try_from(head_dim).unwrap_or(HEAD_DIM_MAX);
    let n_rot = keys.size("rope.dimension_count", most)?;
    let name = keys.name("rope.dimension_count");
    if !n_rot.is_multiple_of(2) {
        return Err(format!("metadata key `{name}` is {n_rot}, but must be even"));
    }
    let sections = keys.integers("rope.dimension_sections", 4)?;
    let sum = sections.iter().try_fold(0_u64, |sum, &section| sum.checked_add(section));
    if sum != Some(n_rot as u64 / 2) {
        return Err(format!(
            "metadata key `{}` is {sections:?}, but must add up to half of `{name}`, {}",
            keys.name("rope.dimension_sections"),
            n_rot / 2
        ));
    }
    Ok(n_rot)
}

fn check_indexer(keys: &Keys<'_>, hyper: &Hyperparameters) -> Result<(), String> {
    let IndexerSizes { head_dim, budget, .. } = hyper.indexer;
    if !head_dim.is_multiple_of(16) || head_dim < hyper.n_rot {
        return Err(format!(
            "metadata key `{}` is {head_dim}, but must be a multiple of 16 and at least the {} \
             elements that are rotated",
            keys.name("attention.indexer.key_length"),
            hyper.n_rot
        ));
    }
    for kind in hyper.layers.iter().chain(&hyper.draft) {
        if let LayerKind::Full { compress_ratio } = *kind
            && compress_ratio > 0
            && !budget.is_multiple_of(compress_ratio)
        {
            return Err(format!(
                "metadata key `{}` is {budget}, which is no multiple of {compress_ratio} in `{}`",
                keys.name("attention.indexer.top_k"),
                keys.name("attention.compress_ratios")
            ));
        }
    }
    Ok(())
}

const PLE_KEYS: [&str; 8] = [
    "ple.layers",
    "ple.ngram_size",
    "ple.heads_per_ngram",
    "ple.conv_kernel",
    "ple.eos_token_id",
    "ple.layer_multipliers",
    "ple.head_offsets",
    "ple.head_vocab_sizes",
];

/// The n-gram embedding: all of its keys, or none and no table.
fn ple(
    keys: &Keys<'_>,
    hyper: &Hyperparameters,
    table_rows: Option<u64>,
) -> Result<Option<PleSizes>, String> {
    if table_rows.is_none() && !PLE_KEYS.iter().any(|key| keys.has(key)) {
        return Ok(None);
    }
    let n_table_rows = table_rows.ok_or_else(|| format!("tensor `{NGRAM_TABLE}` is missing"))?;
    let layers = keys.integers("ple.layers", 1)?;
    let layer = usize::try_from(layers[0]).unwrap_or(usize::MAX);
    if layer == 0 || layer >= hyper.n_layers {
        return Err(format!(
            "metadata key `{}` is {layers:?}, but must name one layer from 1 to {}",
            keys.name("ple.layers"),
            hyper.n_layers - 1
        ));
    }
    let order = keys.size("ple.ngram_size", NGRAM_MAX)?;
    let heads_per_ngram = keys.size("ple.heads_per_ngram", NGRAM_HEADS_MAX)?;
    if order < 2 {
        return Err(format!(
            "metadata key `{}` is {order}, but must be between 2 and {NGRAM_MAX}",
            keys.name("ple.ngram_size")
        ));
    }
    let n_heads = (order - 1) * heads_per_ngram;
    let row_width = keys.size("embedding_length_per_layer_input", D_MODEL_MAX)?;
    if row_width.checked_mul(n_heads) != Some(hyper.d_model) {
        return Err(format!(
            "metadata key `{}` is {row_width}: {n_heads} such rows (`{}`, `{}`) do not make the \
             width {} of the model",
            keys.name("embedding_length_per_layer_input"),
            keys.name("ple.ngram_size"),
            keys.name("ple.heads_per_ngram"),
            hyper.d_model
        ));
    }
    let most = u32::try_from(hyper.vocab_size.saturating_sub(1)).unwrap_or(u32::MAX);
    let ple = PleSizes {
        layer,
        order,
        heads_per_ngram,
        row_width,
        conv_kernel: keys.size("ple.conv_kernel", CONV_KERNEL_MAX)?,
        eos: keys.count("ple.eos_token_id", None, most)?,
        multipliers: keys.integers("ple.layer_multipliers", order)?,
        offsets: keys.integers("ple.head_offsets", n_heads)?,
        sizes: keys.integers("ple.head_vocab_sizes", n_heads)?,
        n_table_rows,
    };
    check_hash(keys, &ple, hyper.vocab_size)?;
    Ok(Some(ple))
}

/// Products stay below 2^63; the heads' rows follow one another inside the table.
fn check_hash(keys: &Keys<'_>, ple: &PleSizes, vocab_size: usize) -> Result<(), String> {
    let bad = |key: &str, what: String| Err(format!("metadata key `{}` {what}", keys.name(key)));
    let is_good = |factor: u64| {
        factor > 0 && factor.checked_mul(vocab_size as u64).is_some_and(|p| p < 1 << 63)
    };
    if let Some(factor) = ple.multipliers.iter().find(|factor| !is_good(**factor)) {
        let what = format!(
            "lists {factor}; with token ids up to {vocab_size} it must be positive \
                            and its products below 2^63"
        );
        return bad("ple.layer_multipliers", what);
    }
    if let Some(size) = ple.sizes.iter().find(|&&size| size == 0 || size > ple.n_table_rows) {
        let what = format!("lists {size}, but the table has {} rows", ple.n_table_rows);
        return bad("ple.head_vocab_sizes", what);
    }
    let mut end = 0_u64;
    for (&offset, &size) in ple.offsets.iter().zip(&ple.sizes) {
        let next = offset.checked_add(size).filter(|&next| next <= ple.n_table_rows);
        match next {
            Some(next) if offset >= end => end = next,
            _ => {
                let what = format!(
                    "puts a head of {size} rows at {offset}, but the one before ends at {end} and \
                     the table at {}",
                    ple.n_table_rows
                );
                return bad("ple.head_offsets", what);
            }
        }
    }
    Ok(())
}
