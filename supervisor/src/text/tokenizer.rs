//! Text to token ids.
//!
//! Special tokens are cut out first, then each stretch of plain text is composed, cut into words
//! and merged. Control tokens come only from [`Tokenizer::encode`] with `parse_special` and from
//! the template's own text: the merging vocabulary does not contain them.

use std::collections::HashSet;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use shared::gguf::Metadata;
use shared::ids::TokenId;
use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::TextError;
use super::bound::Bound;
use super::escape::Escape;
use super::pretokenizer::Pretokenizer;
use super::vocabulary::{BYTE_LETTERS, Model, SPACE_MARK, TokenKind, Vocabulary, byte_token};

/// Words remembered with their tokens, per thread.
const CACHED_WORDS_MAX: usize = 16 * 1024;

/// Turns text into token ids.
#[derive(Debug)]
pub(super) struct Tokenizer {
    vocabulary: Arc<Vocabulary>,
    merger: BPE,
    /// `None`: all text is one word (SentencePiece).
    pretokenizer: Option<Pretokenizer>,
    bound: Bound,
    /// Control, unknown and user-defined tokens.
    specials: Specials,
    /// User-defined tokens: they are found in any text.
    user_defined: Specials,
}

/// Finds token names in text, the longest at each place.
#[derive(Debug)]
struct Specials {
    finder: Option<AhoCorasick>,
    tokens: Vec<TokenId>,
}

impl Tokenizer {
    pub(super) fn new(metadata: &Metadata, vocabulary: Arc<Vocabulary>) -> Result<Self, TextError> {
        let (merger, pretokenizer) = match vocabulary.model {
            Model::ByteLevel => byte_level(metadata, &vocabulary)?,
            Model::SentencePiece => (sentence_piece(metadata, &vocabulary)?, None),
        };
        let specials = Specials::new(&vocabulary, |kind| {
            matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined)
        })?;
        let user_defined = Specials::new(&vocabulary, |kind| kind == TokenKind::UserDefined)?;
        let composes = pretokenizer.as_ref().is_some_and(|pretokenizer| pretokenizer.composes);
        let bound = Bound::new(&vocabulary, composes);
        Ok(Self { vocabulary, merger, pretokenizer, bound, specials, user_defined })
    }

    /// See [`super::Text::encode`].
    pub(super) fn encode(
        &self,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Vec<TokenId> {
        let mut out = Output { tokens: Vec::new(), after_special: true };
        if add_special && self.vocabulary.add_bos {
            out.tokens.extend(self.vocabulary.bos);
        }
        let specials = if parse_special { &self.specials } else { &self.user_defined };
        self.encode_parts(text, specials, &mut out, |part, out| self.encode_plain(part, out));
        if add_special && self.vocabulary.add_eos {
            out.tokens.extend(self.vocabulary.eos);
        }
        out.tokens
    }

    /// Encodes a rendered template: special names in it are tokens, except where `escape` marked
    /// them as a user's text. A begin-of-text token is added if the model wants one and the
    /// template did not write it.
    pub(super) fn encode_rendered(&self, rendered: &str, escape: &Escape) -> Vec<TokenId> {
        let mut out = Output { tokens: Vec::new(), after_special: true };
        self.encode_parts(rendered, &self.specials, &mut out, |part, out| {
            let plain = escape.undo(part);
            self.encode_parts(&plain, &self.user_defined, out, |part, out| {
                self.encode_plain(part, out);
            });
        });
        if self.vocabulary.add_bos && out.tokens.first().copied() != self.vocabulary.bos {
            out.tokens.splice(0..0, self.vocabulary.bos);
        }
        out.tokens
    }

    /// How few tokens [`Tokenizer::encode`] can give.
    pub(super) fn least(&self, text: &str, parse_special: bool) -> usize {
        let specials = if parse_special { &self.specials } else { &self.user_defined };
        self.least_of(text, specials, |part| self.bound.least(part))
    }

    /// How few tokens [`Tokenizer::encode_rendered`] can give.
    pub(super) fn least_rendered(&self, rendered: &str, escape: &Escape) -> usize {
        self.least_of(rendered, &self.specials, |part| self.bound.least(&escape.undo(part)))
    }

    fn least_of(&self, text: &str, specials: &Specials, plain: impl Fn(&str) -> usize) -> usize {
        let mut out = Output { tokens: Vec::new(), after_special: true };
        let mut least = 0;
        self.encode_parts(text, specials, &mut out, |part, _| least += plain(part));
        least + out.tokens.len()
    }

    /// Special tokens as such, what lies between them through `plain`.
    fn encode_parts(
        &self,
        text: &str,
        specials: &Specials,
        out: &mut Output,
        mut plain: impl FnMut(&str, &mut Output),
    ) {
        let mut at = 0;
        if let Some(finder) = &specials.finder {
            for found in finder.find_iter(text) {
                if found.start() > at {
                    plain(&text[at..found.start()], out);
                }
                out.tokens.push(specials.tokens[found.pattern().as_usize()]);
                out.after_special = true;
                at = found.end();
            }
        }
        if at < text.len() {
            plain(&text[at..], out);
        }
    }

    fn encode_plain(&self, text: &str, out: &mut Output) {
        let Some(pretokenizer) = &self.pretokenizer else {
            let mut word = String::with_capacity(text.len() + 3);
            if self.vocabulary.add_space_prefix && out.after_special {
                word.push(SPACE_MARK);
            }
            word.extend(text.chars().map(|c| if c == ' ' { SPACE_MARK } else { c }));
            out.after_special = false;
            return self.merge(&word, &mut out.tokens);
        };
        out.after_special = false;
        let composed;
        let text = if pretokenizer.composes && is_nfc_quick(text.chars()) != IsNormalized::Yes {
            composed = text.nfc().collect::<String>();
            &composed
        } else {
            text
        };
        let mut letters = String::new();
        pretokenizer.cut(text, &mut |word| {
            letters.clear();
            letters.extend(word.bytes().map(|byte| BYTE_LETTERS[usize::from(byte)]));
            self.merge(&letters, &mut out.tokens);
        });
    }

    fn merge(&self, word: &str, tokens: &mut Vec<TokenId>) {
        let merged = self.merger.tokenize(word);
        // The only error is an unknown token that is not in the vocabulary; ours is, or is unset.
        let merged = merged.expect("the unknown token was taken from the vocabulary");
        tokens.extend(merged.iter().map(|token| TokenId(token.id)));
    }
}

struct Output {
    tokens: Vec<TokenId>,
    /// The last token was special, or there is none: SentencePiece puts a space in front.
    after_special: bool,
}

impl Specials {
    fn new(vocabulary: &Vocabulary, wanted: impl Fn(TokenKind) -> bool) -> Result<Self, TextError> {
        let mut names: Vec<&str> = Vec::new();
        let mut tokens = Vec::new();
        for (index, (name, &kind)) in vocabulary.tokens.iter().zip(&vocabulary.kinds).enumerate() {
            if wanted(kind) && !name.is_empty() {
                names.push(name);
                tokens.push(Vocabulary::id(index));
            }
        }
        if names.is_empty() {
            return Ok(Self { finder: None, tokens });
        }
        // Of equal names the first is found, since patterns of one length rank by order.
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&names)
            .map_err(|error| {
                TextError::Invalid(format!("the special tokens cannot be searched for: {error}"))
            })?;
        Ok(Self { finder: Some(finder), tokens })
    }
}

/// Names of the tokens that text may become, the first of equal ones.
fn mergeable(vocabulary: &Vocabulary) -> Vocab {
    let mut vocab = Vocab::default();
    vocab.reserve(vocabulary.tokens.len());
    for (index, (token, kind)) in vocabulary.tokens.iter().zip(&vocabulary.kinds).enumerate() {
        if *kind == TokenKind::Normal && !token.is_empty() {
            vocab.entry(token.clone()).or_insert(Vocabulary::id(index).0);
        }
    }
    vocab
}

fn byte_level(
    metadata: &Metadata,
    vocabulary: &Vocabulary,
) -> Result<(BPE, Option<Pretokenizer>), TextError> {
    let name = metadata.str("tokenizer.ggml.pre")?.unwrap_or_else(|| {
        tracing::warn!("the weight file names no pre-tokenizer; text is cut as GPT-2 does");
        "default"
    });
    let pretokenizer = Pretokenizer::named(name)?;
    let vocab = mergeable(vocabulary);
    let key = "tokenizer.ggml.merges";
    let listed = metadata.strings(key)?;
    let listed = listed.ok_or_else(|| shared::gguf::GgufError::Missing(key.to_owned()))?;
    // Most files need this never.
    let all = std::cell::OnceCell::new();
    let is_token = |part: &str| {
        let fill = || vocabulary.tokens.iter().map(String::as_str).collect::<HashSet<_>>();
        all.get_or_init(fill).contains(part)
    };
    let mut merges: Merges = Vec::with_capacity(listed.len());
    let mut joined = String::new();
    for (index, merge) in listed.iter().enumerate() {
        let broken = |what: &str| {
            let start: String = merge.chars().take(80).collect();
            TextError::Invalid(format!("entry {index} of `{key}` (`{start}`) {what}"))
        };
        // A first part of a lone space was never seen, but would begin the entry.
        let split = merge.char_indices().skip(1).find(|&(_, c)| c == ' ');
        let Some((at, _)) = split else { return Err(broken("is not two parts with a space")) };
        let (left, right) = (&merge[..at], &merge[at + 1..]);
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        if [left, right, &joined].iter().all(|part| vocab.contains_key(*part)) {
            merges.push((left.to_owned(), right.to_owned()));
        } else if let Some(part) = [left, right, &joined].iter().find(|part| !is_token(part)) {
            return Err(broken(&format!("needs `{part}`, which is not a token")));
        }
        // Else a part is a special token: text must never become one.
    }
    let absent = (0..=u8::MAX).filter(|&byte| {
        let letter = BYTE_LETTERS[usize::from(byte)];
        // The others never occur in UTF-8.
        !matches!(byte, 0xc0 | 0xc1 | 0xf5..) && !vocab.contains_key(letter.to_string().as_str())
    });
    let absent = absent.count();
    if absent > 0 {
        tracing::info!("the vocabulary has no token for {absent} of the bytes; text loses them");
    }
    let merger = build(BPE::builder().ignore_merges(pretokenizer.whole_words), vocab, merges)?;
    Ok((merger, Some(pretokenizer)))
}

/// The merges are not in the file: they are every way to join two pieces to a third, the piece
/// with the highest score first.
///
/// Source: `convert_slow_tokenizer.py` of transformers, `generate_merges`.
fn sentence_piece(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<BPE, TextError> {
    let key = "tokenizer.ggml.scores";
    let scores = metadata.f64s(key)?;
    let scores = scores.ok_or_else(|| shared::gguf::GgufError::Missing(key.to_owned()))?;
    if scores.len() != vocabulary.tokens.len() {
        return Err(TextError::Invalid(format!(
            "metadata key `{key}` holds {} scores for {} tokens",
            scores.len(),
            vocabulary.tokens.len()
        )));
    }
    if let Some(index) = scores.iter().position(|score| score.is_nan()) {
        return Err(TextError::Invalid(format!("entry {index} of `{key}` is not a number")));
    }
    let mut vocab = mergeable(vocabulary);
    let mut ranked: Vec<(usize, usize, u32, u32)> = Vec::new();
    for (index, piece) in vocabulary.tokens.iter().enumerate() {
        if vocab.get(piece).is_none_or(|&id| id as usize != index) {
            continue;
        }
        for (at, _) in piece.char_indices().skip(1) {
            let (left, right) = (vocab.get(&piece[..at]), vocab.get(&piece[at..]));
            if let (Some(&left), Some(&right)) = (left, right) {
                ranked.push((index, at, left, right));
            }
        }
    }
    // Best score first; of one piece, the way with the earliest parts.
    ranked.sort_by(|a, b| {
        scores[b.0].total_cmp(&scores[a.0]).then((a.0, a.2, a.3).cmp(&(b.0, b.2, b.3)))
    });
    let merges: Merges = ranked
        .iter()
        .map(|&(index, at, ..)| {
            let (left, right) = vocabulary.tokens[index].split_at(at);
            (left.to_owned(), right.to_owned())
        })
        .collect();
    let mut builder = BPE::builder().byte_fallback(true).fuse_unk(true);
    for (index, (token, kind)) in vocabulary.tokens.iter().zip(&vocabulary.kinds).enumerate() {
        if let (TokenKind::Byte, Some(byte)) = (kind, byte_token(token)) {
            // The spelling under which the merger looks for it.
            vocab.entry(format!("<0x{byte:02X}>")).or_insert(Vocabulary::id(index).0);
        }
    }
    if let Some(unknown) = vocabulary.unknown {
        let name = vocabulary.name(Some(unknown)).to_owned();
        vocab.insert(name.clone(), unknown.0);
        builder = builder.unk_token(name);
    }
    build(builder, vocab, merges)
}

fn build(
    builder: tokenizers::models::bpe::BpeBuilder,
    vocab: Vocab,
    merges: Merges,
) -> Result<BPE, TextError> {
    builder
        .vocab_and_merges(vocab, merges)
        .cache_capacity(CACHED_WORDS_MAX)
        .build()
        .map_err(|error| TextError::Invalid(format!("the merges cannot be used: {error}")))
}
