//! Token ids from files: the worker knows no text.

use std::path::Path;

use shared::ids::TokenId;

use super::ToolError;

/// Reads ids separated by white space or commas.
pub(super) fn read(path: &Path) -> Result<Vec<TokenId>, ToolError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ToolError::usage(format!("--tokens {}: {error}", path.display())))?;
    parse(&path.display().to_string(), &text)
}

/// The ids in a text that came from `source`.
pub(super) fn parse(source: &str, text: &str) -> Result<Vec<TokenId>, ToolError> {
    let parse = |word: &str| {
        word.parse().map(TokenId).map_err(|_| {
            let word: String = word.chars().take(40).collect();
            ToolError::usage(format!("{source}: {word:?} is no token id"))
        })
    };
    let is_between = |c: char| c.is_ascii_whitespace() || c == ',';
    text.split(is_between).filter(|word| !word.is_empty()).map(parse).collect()
}

/// All ids must be in the vocabulary.
pub(super) fn check(tokens: &[TokenId], vocab_size: u32) -> Result<(), ToolError> {
    match tokens.iter().find(|token| token.0 >= vocab_size) {
        None => Ok(()),
        Some(token) => Err(ToolError::usage(format!(
            "token {token} is not in the model's vocabulary of {vocab_size}"
        ))),
    }
}
