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

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

    use super::append_whole;

    const EDGES: [u8; 16] = [
        0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc2, 0xe0, 0xe2, 0xed, 0xf0, 0xf4,
        0xff,
    ];

    proptest! {
        #[test]
        fn any_split_of_any_bytes_decodes_as_the_whole(
            pieces in prop::collection::vec(
                prop::collection::vec(
                    // Bytes at which UTF-8 changes its mind, and any other.
                    prop_oneof![prop::sample::select(EDGES.to_vec()), any::<u8>()],
                    0..4,
                ),
                0..12,
            ),
        ) {
            let (mut pending, mut out) = (Vec::new(), String::new());
            for piece in &pieces {
                pending.extend_from_slice(piece);
                let rest = append_whole(&pending, &mut out).to_vec();
                prop_assert!(rest.len() < 4);
                pending = rest;
            }
            if !pending.is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
            }
            let whole = pieces.concat();
            prop_assert_eq!(out, String::from_utf8_lossy(&whole));
        }
    }
}
