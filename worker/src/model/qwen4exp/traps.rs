//! Known mistakes of converters that leave a file readable and its answers worse.

use super::{Hyperparameters, LayerKind};
use crate::model::WeightFile;

/// What is suspicious about a file that can be computed, one sentence each.
pub(crate) fn warnings(file: &WeightFile, hyper: &Hyperparameters) -> Vec<String> {
    let mut found = Vec::new();
    let is_dense = |kind: &LayerKind| matches!(kind, LayerKind::Full { compress_ratio: 0 });
    let is_full = |kind: &&LayerKind| matches!(kind, LayerKind::Full { .. });
    let has_indexer = file.names().any(|name| name.contains(".indexer."));
    if has_indexer && hyper.layers.iter().filter(is_full).all(is_dense) {
        found.push(
            "it holds an indexer, but `qwen4exp.attention.compress_ratios` are all zero: the \
             converter lost them, attention is computed dense and long contexts cost more and \
             answer differently; convert it again"
                .to_owned(),
        );
    }
    let is_inject = |name: &str| name.contains(".hc_") && name.ends_with("_inject.weight");
    let low: Vec<_> =
        file.types().filter(|(name, kind)| is_inject(name) && bits_per_element(kind) < 8).collect();
    if let Some((name, kind)) = low.first() {
        found.push(format!(
            "{} tensors such as `{name}` are stored as {kind} or the like; an inject below 8 \
             bits is reported to break the model",
            low.len()
        ));
    }
    for (name, kind) in file.types() {
        if name.ends_with(".ple_conv1d.weight") && !is_float(kind) {
            found.push(format!(
                "tensor `{name}` is stored as {kind}; anything but a float is reported to break \
                 the model"
            ));
        }
    }
    if let Some(ple) = &hyper.ple {
        let eos = file.metadata.u32("tokenizer.ggml.eos_token_id").ok().flatten();
        if eos.is_some_and(|eos| eos != ple.eos) {
            found.push(format!(
                "`qwen4exp.ple.eos_token_id` is {}, but the tokenizer's end is another token: the \
                 model was trained with the first of its end tokens, and a converter writes the \
                 last",
                ple.eos
            ));
        }
    }
    found
}

fn is_float(kind: &str) -> bool {
    matches!(kind, "F32" | "F16" | "BF16")
}

/// From the digit in a block format's name: `Q8_0` has 8, `IQ3_S` 3.
fn bits_per_element(kind: &str) -> u32 {
    if is_float(kind) {
        return 16;
    }
    kind.chars().find_map(|c| c.to_digit(10)).unwrap_or(0)
}
