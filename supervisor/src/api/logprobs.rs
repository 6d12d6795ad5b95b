//! Log-probabilities in the two shapes of the API.

use serde_json::{Map, Value, json};
use shared::ids::TokenId;
use shared::protocol::Logprobs;

use super::service::Words;

/// A token as text; broken code points become U+FFFD, `bytes` has the truth.
fn text(words: &dyn Words, token: TokenId) -> String {
    String::from_utf8_lossy(words.piece(token)).into_owned()
}

fn chat_entry(words: &dyn Words, token: TokenId, logprob: f32) -> Map<String, Value> {
    Map::from_iter([
        ("token".to_owned(), text(words, token).into()),
        ("logprob".to_owned(), logprob.into()),
        ("bytes".to_owned(), words.piece(token).into()),
    ])
}

/// An entry of `logprobs.content` of a chat answer.
pub(super) fn chat(words: &dyn Words, token: TokenId, logprobs: &Logprobs) -> Value {
    let mut entry = chat_entry(words, token, logprobs.chosen);
    let top: Vec<Value> = logprobs
        .top
        .iter()
        .map(|(token, logprob)| Value::Object(chat_entry(words, *token, *logprob)))
        .collect();
    entry.insert("top_logprobs".to_owned(), top.into());
    Value::Object(entry)
}

/// The classic shape: parallel lists, offsets in characters of the answer.
#[derive(Debug, Default)]
pub(super) struct ClassicLists {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
}

impl ClassicLists {
    /// Appends a token whose text begins at `offset`.
    pub(super) fn push(
        &mut self,
        words: &dyn Words,
        token: TokenId,
        logprobs: &Logprobs,
        offset: usize,
    ) {
        self.tokens.push(text(words, token).into());
        self.token_logprobs.push(logprobs.chosen.into());
        let mut top = Map::new();
        for (token, logprob) in &logprobs.top {
            // Tokens that look alike share a key here: the likelier one, which comes first, stays.
            top.entry(text(words, *token)).or_insert_with(|| (*logprob).into());
        }
        self.top_logprobs.push(top.into());
        self.text_offset.push(offset.into());
    }

    /// The object of the API.
    pub(super) fn into_json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}
