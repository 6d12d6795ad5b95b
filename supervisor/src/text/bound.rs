//! How few tokens a text can possibly have, told without turning it into tokens.
//!
//! No token stands for more bytes than the longest one, so a text far too long for a context can
//! be refused at the cost of reading it.

use std::num::NonZeroUsize;

use super::vocabulary::{BYTE_LETTERS, Model, TokenKind, Vocabulary, byte_token};

/// Composing (NFC) shortens no text to less than this part of its bytes: three letters of Hangul
/// become one syllable, the sign for Kelvin becomes a letter.
const COMPOSED_PART: usize = 3;

/// The bound of one vocabulary.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    /// Most bytes of plain text that one token stands for; `None` if there is no such limit.
    bytes_max: Option<NonZeroUsize>,
    composes: bool,
    /// Which bytes have a token; the others are left out of a text.
    has: [bool; 256],
}

impl Bound {
    /// `composes`: texts are composed before they are cut.
    pub(super) fn new(vocabulary: &Vocabulary, composes: bool) -> Self {
        let is_text = |kind: &TokenKind| {
            matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte)
        };
        let texts = (vocabulary.kinds.iter().enumerate()).filter(|(_, kind)| is_text(kind));
        let bytes_max = texts.map(|(index, _)| match vocabulary.model {
            Model::ByteLevel => vocabulary.piece(Vocabulary::id(index)).len(),
            // As spelled: a text may have the mark of a space instead of the space.
            Model::SentencePiece => vocabulary.tokens[index].len(),
        });
        let bytes_max = bytes_max.max().and_then(NonZeroUsize::new);
        let has = bytes_with_token(vocabulary);
        // Otherwise a run of the others becomes one unknown token.
        let is_bounded = vocabulary.model == Model::ByteLevel || has_all(&has);
        Self { bytes_max: bytes_max.filter(|_| is_bounded), composes, has }
    }

    /// No fewer tokens than these stand for a stretch of plain text.
    pub(super) fn least(&self, text: &str) -> usize {
        let Some(bytes_max) = self.bytes_max else { return 0 };
        let bytes = if has_all(&self.has) {
            text.len()
        } else if self.composes && !text.is_ascii() {
            // What it is composed to may have no token.
            0
        } else {
            text.bytes().filter(|&byte| self.has[usize::from(byte)]).count()
        };
        let is_shortened = self.composes && !text.is_ascii();
        let bytes = if is_shortened { bytes.div_ceil(COMPOSED_PART) } else { bytes };
        bytes.div_ceil(bytes_max.get())
    }
}

/// Whether every byte that occurs in UTF-8 has a token.
fn has_all(has: &[bool; 256]) -> bool {
    has.iter().enumerate().all(|(byte, has)| *has || matches!(byte, 0xc0 | 0xc1 | 0xf5..))
}

/// The bytes that have a token of their own.
fn bytes_with_token(vocabulary: &Vocabulary) -> [bool; 256] {
    let mut has = [false; 256];
    for (token, kind) in vocabulary.tokens.iter().zip(&vocabulary.kinds) {
        let byte = match (vocabulary.model, kind) {
            (Model::SentencePiece, TokenKind::Byte) => byte_token(token).map(usize::from),
            (Model::ByteLevel, TokenKind::Normal) => {
                let mut letters = token.chars();
                let letter = letters.next().filter(|_| letters.next().is_none());
                letter.and_then(|letter| BYTE_LETTERS.iter().position(|&other| other == letter))
            }
            _ => None,
        };
        if let Some(byte) = byte {
            has[byte] = true;
        }
    }
    has
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use proptest::prelude::{Strategy, prop, prop_assert, proptest};
    use serde_json::json;

    use crate::text::fixture::{Header, qwen35_header, sentence_piece_header};
    use crate::text::{ChatOptions, Text};

    fn texts() -> [Arc<Text>; 3] {
        [qwen35_header(), sentence_piece_header(), sparse_header()].map(|header| {
            let header = header.text("tokenizer.chat_template", "<s>{{ messages[0].content }}</s>");
            Arc::new(Text::from_gguf(&header.gguf()).unwrap())
        })
    }

    /// Bytes of which most have no token, as in a few published vocabularies.
    fn sparse_header() -> Header {
        Header::default()
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "gpt-2")
            .texts("tokenizer.ggml.tokens", &["<s>", "</s>", "a", "l", "Ġ", "s", "al", "all"])
            .i32s("tokenizer.ggml.token_type", &[3, 3, 1, 1, 1, 1, 1, 1])
            .texts("tokenizer.ggml.merges", &["a l", "al l"])
    }

    /// What merges, composes, is special, or must be kept apart from what is.
    fn piece() -> impl Strategy<Value = String> {
        prop::sample::select(vec![
            "a",
            "aaa",
            " all",
            "▁",
            "▁a",
            "s",
            "\u{212a}",
            "e\u{301}",
            "\u{1112}\u{1161}\u{11ab}",
            "ω\u{313}\u{301}\u{345}",
            "東",
            "<|im_end|>",
            "<s>",
            "</s>",
            "<",
            "\u{fdd0}",
            "\u{fdd1}",
            "\n\n",
            "  ",
            "🦀",
        ])
        .prop_map(str::to_owned)
    }

    proptest! {
        #[test]
        fn no_text_has_fewer_tokens(
            pieces in prop::collection::vec(piece(), 0..60),
            count in 1usize..20,
            parse_special: bool,
        ) {
            let input = pieces.concat().repeat(count);
            for text in texts() {
                let tokens = text.encode(&input, false, parse_special).len();
                let least = text.least_tokens(&input, parse_special);
                prop_assert!(least <= tokens, "{least} > {tokens}: {input:?}");
                let (messages, seen) =
                    ([json!({"role": "user", "content": input})], Cell::new(0));
                let watch = |least| { seen.set(least); true };
                let tokens = text.encode_chat_if(&messages, &ChatOptions::default(), &watch);
                let tokens = tokens.unwrap().len();
                prop_assert!(seen.get() <= tokens, "{} > {tokens}: {input:?}", seen.get());
            }
        }
    }

    #[test]
    fn a_long_text_is_known_to_be_long() {
        for text in texts() {
            let long = "all a s ".repeat(10_000);
            let least = text.least_tokens(&long, true);
            assert!(least > 1000, "{least}");
            let messages = [json!({"role": "user", "content": long})];
            let none = text.encode_chat_if(&messages, &ChatOptions::default(), &|least| {
                assert!(least > 1000, "{least}");
                false
            });
            assert!(none.unwrap().is_empty());
        }
    }
}
