//! Token ids to text, one token at a time, never half a code point.

use std::sync::Arc;

use shared::ids::TokenId;

use super::vocabulary::Vocabulary;

/// Turns a stream of tokens into text.
///
/// Whatever the tokens and however they are split, the concatenated output is
/// `String::from_utf8_lossy` of the concatenated bytes.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    vocabulary: Arc<Vocabulary>,
    /// The beginning of a code point whose end has not come yet: at most three bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    pub(super) fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self { vocabulary, pending: Vec::new() }
    }

    /// Appends to `out` the text that this token completes. Control tokens and ids outside the
    /// vocabulary stand for no text.
    pub fn push(&mut self, token: TokenId, out: &mut String) {
        let bytes = self.vocabulary.text_bytes(token);
        if self.pending.is_empty() {
            let rest = append_whole(bytes, out);
            self.pending.extend_from_slice(rest);
        } else {
            let mut joined = std::mem::take(&mut self.pending);
            joined.extend_from_slice(bytes);
            let rest = append_whole(&joined, out).len();
            joined.drain(..joined.len() - rest);
            self.pending = joined;
        }
    }

    /// The stream ended: a code point that stayed incomplete becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Appends all that can be decided, broken bytes as U+FFFD; returns the incomplete tail.
fn append_whole<'a>(mut bytes: &'a [u8], out: &mut String) -> &'a [u8] {
    loop {
        let error = match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                return &[];
            }
            Err(error) => error,
        };
        let (valid, rest) = bytes.split_at(error.valid_up_to());
        out.push_str(std::str::from_utf8(valid).expect("checked up to here"));
        let Some(length) = error.error_len() else { return rest };
        out.push(char::REPLACEMENT_CHARACTER);
        bytes = &rest[length..];
    }
}
