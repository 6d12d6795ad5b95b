//! The vocabulary as the weight file gives it, checked, and the bytes each token stands for.
//!
//! Invariants: every id named by the metadata exists; [`Vocabulary::piece`] answers for any id.

use shared::gguf::{Gguf, Metadata};
use shared::ids::TokenId;
use shared::limits::{END_TOKENS_MAX, VOCAB_SIZE_MAX};

use super::{TextError, pretokenizer};

/// How pieces of text became tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Model {
    /// Merges over the bytes, each byte written as a printable letter (GPT-2).
    ByteLevel,
    /// Merges by score over code points, with bytes as a fallback (SentencePiece).
    SentencePiece,
}

/// What a token is for, as `tokenizer.ggml.token_type` numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for what the vocabulary cannot express.
    Unknown,
    /// A mark of the model's own, never text.
    Control,
    /// Text that is always one token.
    UserDefined,
    /// A filler.
    Unused,
    /// One byte.
    Byte,
}

impl TokenKind {
    fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            // 0 is "undefined"; converters write it for ordinary tokens.
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// All tokens and the ids with a role.
#[derive(Debug)]
pub(super) struct Vocabulary {
    pub(super) model: Model,
    /// Tokens as the file spells them.
    pub(super) tokens: Box<[String]>,
    pub(super) kinds: Box<[TokenKind]>,
    pub(super) bos: Option<TokenId>,
    pub(super) eos: Option<TokenId>,
    pub(super) unknown: Option<TokenId>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
    pub(super) add_space_prefix: bool,
    pub(super) ends: Box<[TokenId]>,
    /// Bytes of all tokens, one after another; token `i` is `starts[i]..starts[i + 1]`.
    bytes: Box<[u8]>,
    starts: Box<[usize]>,
}

/// Tokens that end a turn or a text in the models we know, found by name because weight files
/// often declare only one of them.
///
/// Source: the same list in llama.cpp's `llama-vocab.cpp`.
const END_NAMES: [&str; 22] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|eos|>",
    "<eos>",
    "<turn|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "</s>",
    "<EOT>",
];

impl Vocabulary {
    pub(super) fn from_gguf(gguf: &Gguf) -> Result<Self, TextError> {
        let metadata = &gguf.metadata;
        let model = match metadata.str("tokenizer.ggml.model")? {
            Some("gpt2") => Model::ByteLevel,
            Some("llama") => Model::SentencePiece,
            Some(other) => return Err(TextError::Model(other.to_owned())),
            None => return Err(missing("tokenizer.ggml.model")),
        };
        let tokens = metadata
            .strings("tokenizer.ggml.tokens")?
            .ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
        if tokens.is_empty() || tokens.len() > VOCAB_SIZE_MAX {
            return Err(TextError::Invalid(format!(
                "metadata key `tokenizer.ggml.tokens` holds {} tokens; between 1 and \
                 {VOCAB_SIZE_MAX} are accepted",
                tokens.len()
            )));
        }
        let kinds = kinds(metadata, tokens.len())?;
        let role = |key: &str| role(metadata, key, tokens.len());
        let (bos, eos) = (role("bos_token_id")?, role("eos_token_id")?);
        let named = [eos, role("eot_token_id")?, role("eom_token_id")?];
        let is_piecewise = model == Model::SentencePiece;
        let flag = |key: &str, default: bool| -> Result<bool, TextError> {
            Ok(metadata.bool(&format!("tokenizer.ggml.{key}"))?.unwrap_or(default))
        };
        let always_bos = is_piecewise
            || metadata.str("tokenizer.ggml.pre")?.is_some_and(pretokenizer::starts_with_bos);
        let (bytes, starts) = pieces(model, tokens, &kinds);
        Ok(Self {
            model,
            bos,
            eos,
            unknown: role("unknown_token_id")?,
            add_bos: flag("add_bos_token", always_bos)?,
            add_eos: flag("add_eos_token", false)?,
            add_space_prefix: is_piecewise && flag("add_space_prefix", true)?,
            ends: ends(tokens, &kinds, &named),
            tokens: tokens.into(),
            kinds,
            bytes,
            starts,
        })
    }

    /// The bytes of a token; control tokens give their name. Empty outside the vocabulary.
    pub(super) fn piece(&self, token: TokenId) -> &[u8] {
        let index = token.index();
        match (self.starts.get(index), self.starts.get(index + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start..end],
            _ => &[],
        }
    }

    /// The bytes a reader should see: nothing for tokens that are no text.
    pub(super) fn text_bytes(&self, token: TokenId) -> &[u8] {
        match self.kinds.get(token.index()) {
            Some(TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte) => self.piece(token),
            _ => &[],
        }
    }

    /// Name of a token with a role, as templates print it; empty if there is none.
    pub(super) fn name(&self, token: Option<TokenId>) -> &str {
        token.and_then(|token| self.tokens.get(token.index())).map_or("", String::as_str)
    }

    pub(super) fn id(index: usize) -> TokenId {
        TokenId(u32::try_from(index).expect("VOCAB_SIZE_MAX is below 2^32"))
    }
}

fn missing(key: &str) -> TextError {
    TextError::Gguf(shared::gguf::GgufError::Missing(key.to_owned()))
}

fn kinds(metadata: &Metadata, count: usize) -> Result<Box<[TokenKind]>, TextError> {
    let key = "tokenizer.ggml.token_type";
    let Some(types) = metadata.u32s(key)? else {
        return Ok(vec![TokenKind::Normal; count].into());
    };
    if types.len() != count {
        return Err(TextError::Invalid(format!(
            "metadata key `{key}` holds {} types for {count} tokens",
            types.len()
        )));
    }
    let kinds = types.iter().enumerate().map(|(index, &id)| {
        TokenKind::from_id(id).ok_or_else(|| {
            let message = format!("metadata key `{key}` gives token {index} the unknown type {id}");
            TextError::Invalid(message)
        })
    });
    kinds.collect()
}

fn role(metadata: &Metadata, key: &str, count: usize) -> Result<Option<TokenId>, TextError> {
    let key = format!("tokenizer.ggml.{key}");
    // Converters write -1 or 2^32 - 1 for "none".
    let none = Some(&shared::gguf::Value::I64(-1));
    if metadata.get(&key) == none {
        return Ok(None);
    }
    match metadata.u32(&key)? {
        None | Some(u32::MAX) => Ok(None),
        Some(id) if (id as usize) < count => Ok(Some(TokenId(id))),
        Some(id) => Err(TextError::Invalid(format!(
            "metadata key `{key}` is {id}, but the vocabulary has {count} tokens"
        ))),
    }
}

fn ends(tokens: &[String], kinds: &[TokenKind], named: &[Option<TokenId>]) -> Box<[TokenId]> {
    let mut ends: Vec<TokenId> = Vec::new();
    // Where a model tells the end of a reply from that of a message, `<|end|>` is the latter.
    let has = |name: &str| tokens.iter().any(|token| token == name);
    let mid_reply = has("<|return|>") && has("<|call|>") || has("<|calls|>") && has("<|flush|>");
    let by_name = tokens.iter().zip(kinds).enumerate().filter_map(|(index, (token, kind))| {
        let is_special = matches!(kind, TokenKind::Control | TokenKind::UserDefined);
        let is_end = END_NAMES.contains(&token.as_str()) && !(mid_reply && token == "<|end|>");
        (is_special && is_end).then(|| Vocabulary::id(index))
    });
    for token in named.iter().flatten().copied().chain(by_name) {
        if !ends.contains(&token) && ends.len() < END_TOKENS_MAX {
            ends.push(token);
        }
    }
    ends.into()
}

fn pieces(model: Model, tokens: &[String], kinds: &[TokenKind]) -> (Box<[u8]>, Box<[usize]>) {
    let mut bytes = Vec::with_capacity(tokens.iter().map(String::len).sum());
    let mut starts = Vec::with_capacity(tokens.len() + 1);
    starts.push(0);
    for (token, kind) in tokens.iter().zip(kinds) {
        match (model, kind) {
            (Model::ByteLevel, TokenKind::Normal | TokenKind::Byte) => {
                append_byte_level(token, &mut bytes);
            }
            (Model::SentencePiece, TokenKind::Byte) => match byte_token(token) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(token.as_bytes()),
            },
            (Model::SentencePiece, TokenKind::Normal | TokenKind::UserDefined) => {
                bytes.extend_from_slice(token.replace(SPACE_MARK, " ").as_bytes());
            }
            _ => bytes.extend_from_slice(token.as_bytes()),
        }
        starts.push(bytes.len());
    }
    (bytes.into(), starts.into())
}

/// What SentencePiece writes for a space.
pub(super) const SPACE_MARK: char = '\u{2581}';

/// The byte of a token `<0xNN>`.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The letter that byte-level vocabularies write for a byte: itself where it is printable in
/// Latin-1, else the next unused one from U+0100 on.
///
/// Source: `bytes_to_unicode` of the GPT-2 release, `encoder.py`.
pub(super) const BYTE_LETTERS: [char; 256] = byte_letters();

const fn byte_letters() -> [char; 256] {
    let mut letters = ['\0'; 256];
    let mut next = 0x100u32;
    let mut byte = 0u8;
    loop {
        letters[byte as usize] = if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
            byte as char
        } else {
            next += 1;
            match char::from_u32(next - 1) {
                Some(letter) => letter,
                None => '\0',
            }
        };
        if byte == u8::MAX {
            return letters;
        }
        byte += 1;
    }
}

/// The byte a letter stands for.
fn letter_byte(letter: char) -> Option<u8> {
    let code = u32::from(letter);
    match u8::try_from(code) {
        Ok(byte) if BYTE_LETTERS[usize::from(byte)] == letter => Some(byte),
        Ok(_) => None,
        // The 68 letters from U+0100 on stand in the order of their bytes.
        Err(_) if code < 0x100 + 68 => {
            let found = BYTE_LETTERS.iter().position(|&other| other == letter)?;
            u8::try_from(found).ok()
        }
        Err(_) => None,
    }
}

fn append_byte_level(token: &str, bytes: &mut Vec<u8>) {
    for letter in token.chars() {
        match letter_byte(letter) {
            Some(byte) => bytes.push(byte),
            // Not a spelling of bytes: a converter left the token as plain text.
            None => bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BYTE_LETTERS, byte_token, letter_byte};

    #[test]
    fn every_byte_has_its_own_letter() {
        for byte in 0..=u8::MAX {
            assert_eq!(letter_byte(BYTE_LETTERS[usize::from(byte)]), Some(byte));
        }
        assert_eq!(BYTE_LETTERS[usize::from(b' ')], 'Ġ');
        assert_eq!(BYTE_LETTERS[usize::from(b'\n')], 'Ċ');
        assert_eq!(BYTE_LETTERS[0xad], 'Ń');
        assert_eq!(letter_byte(' '), None);
        assert_eq!(letter_byte('\u{ad}'), None);
        assert_eq!(letter_byte('東'), None);
    }

    #[test]
    fn byte_tokens_are_read_strictly() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        assert_eq!(byte_token("<0xff>"), Some(255));
        for wrong in ["<0x>", "<0x1>", "<0x+1>", "<0x100>", "0x10", "<0xé>"] {
            assert_eq!(byte_token(wrong), None, "{wrong}");
        }
    }
}
