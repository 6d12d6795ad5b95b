//! What a weight file says of its name and vocabulary, the same for every architecture.

use shared::gguf::{GgufError, Metadata};
use shared::ids::TokenId;
use shared::limits::VOCAB_SIZE_MAX;

use super::WeightFile;
use super::parts::{invalid, refused};
use crate::engine::EngineError;

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
pub(super) fn vocab_size(file: &WeightFile) -> Result<usize, EngineError> {
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

/// A list of tokens, if there is one, has one for each row.
pub(super) fn check_vocabulary(metadata: &Metadata, vocab_size: usize) -> Result<(), String> {
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
