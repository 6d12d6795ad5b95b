//! Weight-file headers made on the spot, for this module's tests.

use std::sync::Arc;

use serde_json::Value;
use shared::gguf::{self, Gguf};

use super::Text;

/// Writes metadata entries as a weight file without tensors would have them.
#[derive(Debug, Default, Clone)]
pub(super) struct Header {
    entries: Vec<u8>,
    count: u64,
}

impl Header {
    fn key(mut self, key: &str, type_id: u32) -> Self {
        string(&mut self.entries, key);
        self.entries.extend(type_id.to_le_bytes());
        self.count += 1;
        self
    }

    pub(super) fn text(self, key: &str, value: &str) -> Self {
        let mut this = self.key(key, 8);
        string(&mut this.entries, value);
        this
    }

    pub(super) fn bool(self, key: &str, value: bool) -> Self {
        let mut this = self.key(key, 7);
        this.entries.push(u8::from(value));
        this
    }

    pub(super) fn u32(self, key: &str, value: u32) -> Self {
        let mut this = self.key(key, 4);
        this.entries.extend(value.to_le_bytes());
        this
    }

    pub(super) fn texts(self, key: &str, values: &[impl AsRef<str>]) -> Self {
        let mut this = self.key(key, 9).array(8, values.len());
        for value in values {
            string(&mut this.entries, value.as_ref());
        }
        this
    }

    pub(super) fn i32s(self, key: &str, values: &[i32]) -> Self {
        let mut this = self.key(key, 9).array(5, values.len());
        this.entries.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        this
    }

    pub(super) fn f32s(self, key: &str, values: &[f32]) -> Self {
        let mut this = self.key(key, 9).array(6, values.len());
        this.entries.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        this
    }

    fn array(mut self, type_id: u32, length: usize) -> Self {
        self.entries.extend(type_id.to_le_bytes());
        self.entries.extend((length as u64).to_le_bytes());
        self
    }

    pub(super) fn gguf(self) -> Gguf {
        let mut bytes = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(self.entries);
        gguf::parse(&bytes, bytes.len() as u64).unwrap()
    }
}

fn string(out: &mut Vec<u8>, value: &str) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value.as_bytes());
}

/// The qwen35 tokenizer of the tiny reference model, as its GGUF describes it.
pub(super) fn qwen35_header() -> Header {
    let source = include_str!("../../../tests/fixtures/qwen35-tiny-tokenizer.json");
    let source: Value = serde_json::from_str(source).unwrap();
    let model = &source["model"];
    let mut tokens: Vec<(u64, String, i32)> = model["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(token, id)| (id.as_u64().unwrap(), token.clone(), 1))
        .collect();
    for added in source["added_tokens"].as_array().unwrap() {
        let name = added["content"].as_str().unwrap().to_owned();
        tokens.push((added["id"].as_u64().unwrap(), name, 3));
    }
    tokens.sort();
    let merges: Vec<String> = model["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
        .collect();
    let names: Vec<&String> = tokens.iter().map(|(_, token, _)| token).collect();
    let kinds: Vec<i32> = tokens.iter().map(|&(_, _, kind)| kind).collect();
    Header::default()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "qwen35")
        .texts("tokenizer.ggml.tokens", &names)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &merges)
        .u32("tokenizer.ggml.eos_token_id", 511)
}

/// See [`qwen35_header`]; with the given chat template, or none.
pub(super) fn qwen35(template: Option<&str>) -> Arc<Text> {
    let header = qwen35_header();
    let header = match template {
        Some(template) => header.text("tokenizer.chat_template", template),
        None => header,
    };
    Arc::new(Text::from_gguf(&header.gguf()).unwrap())
}

/// A small SentencePiece vocabulary: control tokens, all bytes, and a few scored pieces.
pub(super) fn sentence_piece_header() -> Header {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    let mut kinds = vec![2, 3, 3];
    let mut scores = vec![0.0; 3];
    for byte in 0..=u8::MAX {
        tokens.push(format!("<0x{byte:02X}>"));
        kinds.push(6);
        scores.push(0.0);
    }
    let pieces = "▁a ll ▁all a l ▁ s < > / al ▁< aa aaa".split(' ');
    for (piece, score) in pieces.zip((1i16..).map(|rank| -f32::from(rank))) {
        tokens.push(piece.to_owned());
        kinds.push(1);
        scores.push(score);
    }
    Header::default()
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .f32s("tokenizer.ggml.scores", &scores)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
}
