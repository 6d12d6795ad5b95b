//! `strata-supervisor tokenize`: what the tokenizer makes of a file, for people who compare.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use shared::ids::TokenId;
use shared::limits::PROMPT_BYTES_MAX;

use super::{Text, TextError};
use crate::model_file::{self, ModelFileError};

/// Why a file could not be tokenized.
#[derive(Debug, thiserror::Error)]
pub enum TokenizeError {
    /// The weight file cannot be read.
    #[error(transparent)]
    ModelFile(#[from] ModelFileError),
    /// The weight file has no tokenizer that can be used.
    #[error("the weight file {path} has no usable tokenizer: {source}", path = path.display())]
    Text {
        /// The weight file.
        path: PathBuf,
        /// What is wrong.
        source: TextError,
    },
    /// The text cannot be read.
    #[error("cannot read the text {path}: {source}", path = path.display())]
    Io {
        /// The text file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The text is longer than any prompt.
    #[error("the text {path} is longer than {PROMPT_BYTES_MAX} bytes", path = path.display())]
    TooLong {
        /// The text file.
        path: PathBuf,
    },
    /// The text is not UTF-8.
    #[error("the text {path} is not valid UTF-8 at byte {at}", path = path.display())]
    NotUtf8 {
        /// The text file.
        path: PathBuf,
        /// Offset of the first bad byte.
        at: usize,
    },
}

/// Token ids of a text file, as the model of a weight file sees it. Nothing is put in front or
/// behind. With `parse_special`, names of control tokens become those tokens.
///
/// # Errors
///
/// [`TokenizeError`] names the file and what is wrong with it.
pub fn tokenize_command(
    model: &Path,
    text: &Path,
    parse_special: bool,
) -> Result<Vec<TokenId>, TokenizeError> {
    let content = read_text(text)?;
    let opened = model_file::open(model)?;
    let tokenizer = Text::from_gguf(&opened.gguf);
    let tokenizer =
        tokenizer.map_err(|source| TokenizeError::Text { path: model.to_owned(), source })?;
    Ok(tokenizer.encode(&content, false, parse_special))
}

fn read_text(path: &Path) -> Result<String, TokenizeError> {
    let io = |source| TokenizeError::Io { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(PROMPT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() > PROMPT_BYTES_MAX {
        return Err(TokenizeError::TooLong { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        TokenizeError::NotUtf8 { path: path.to_owned(), at }
    })
}
