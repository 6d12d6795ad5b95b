//! The objects of an answer: what stays the same over it, usage, timings.

use std::time::Instant;

use serde_json::{Map, Value, json};
use shared::ids::TokenId;

/// Which of the two routes an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Classic,
}

impl Route {
    /// The name in the journal.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Classic => "completion",
        }
    }

    fn object(self, is_stream: bool) -> &'static str {
        match (self, is_stream) {
            (Self::Chat, false) => "chat.completion",
            (Self::Chat, true) => "chat.completion.chunk",
            (Self::Classic, _) => "text_completion",
        }
    }

    fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Classic => "cmpl",
        }
    }
}

/// What all parts of one answer repeat.
#[derive(Debug, Clone)]
pub(super) struct Head {
    /// The route.
    pub(super) route: Route,
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
}

impl Head {
    /// The head of a new answer.
    pub(super) fn new(route: Route, created: u64, model: &str, fingerprint: &str) -> Self {
        let id = format!("{}-{:016x}", route.id_prefix(), super::request::random());
        Self { route, id, created, model: model.to_owned(), fingerprint: fingerprint.to_owned() }
    }

    /// An object of the answer with these choices.
    pub(super) fn object(&self, is_stream: bool, choices: Vec<Value>) -> Map<String, Value> {
        Map::from_iter([
            ("id".to_owned(), self.id.as_str().into()),
            ("object".to_owned(), self.route.object(is_stream).into()),
            ("created".to_owned(), self.created.into()),
            ("model".to_owned(), self.model.as_str().into()),
            ("system_fingerprint".to_owned(), self.fingerprint.as_str().into()),
            ("choices".to_owned(), choices.into()),
        ])
    }
}

/// Counts and times of one answer.
#[derive(Debug)]
pub(super) struct Tally {
    prompt_tokens: usize,
    completion_tokens: usize,
    admitted: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Tally {
    /// Nothing emitted yet.
    pub(super) fn new(prompt_tokens: usize, admitted: Instant) -> Self {
        Self { prompt_tokens, completion_tokens: 0, admitted, first: None, last: None }
    }

    /// A token was emitted.
    pub(super) fn count(&mut self) {
        self.completion_tokens += 1;
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// The `usage` object: the prompt once, the tokens of all choices. Recomputed tokens are
    /// never in it.
    pub(super) fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": { "cached_tokens": 0 },
        })
    }

    /// llama-server's `timings`, as seen from here: the time to the first token counts as the
    /// prompt's, waiting included. Every number is finite; a rate without two points is 0.
    pub(super) fn timings(&self) -> Value {
        let ms = |from: Instant, to: Option<Instant>| {
            to.map_or(0.0, |to| to.duration_since(from).as_secs_f64() * 1e3)
        };
        let prompt_ms = ms(self.admitted, self.first);
        let predicted_ms = self.first.map_or(0.0, |first| ms(first, self.last));
        let steps = self.completion_tokens.saturating_sub(1);
        json!({
            "cache_n": 0,
            "prompt_n": self.prompt_tokens,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": ratio(prompt_ms, self.prompt_tokens),
            "prompt_per_second": rate(self.prompt_tokens, prompt_ms),
            "predicted_n": self.completion_tokens,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": ratio(predicted_ms, steps),
            "predicted_per_second": rate(steps, predicted_ms),
        })
    }
}

fn ratio(ms: f64, count: usize) -> f64 {
    u32::try_from(count).map_or(0.0, |count| ms / f64::from(count.max(1)))
}

fn rate(count: usize, ms: f64) -> f64 {
    if ms <= 0.0 { 0.0 } else { u32::try_from(count).map_or(0.0, |n| f64::from(n) * 1e3 / ms) }
}

/// A choice of either route, whole or in pieces; `None` for a field that is not there.
pub(super) struct ChoiceParts {
    /// Its index.
    pub(super) index: usize,
    /// Text, if any.
    pub(super) text: Option<String>,
    /// Log-probabilities in the route's shape, or null.
    pub(super) logprobs: Value,
    /// How it ended, or null.
    pub(super) finish_reason: Option<&'static str>,
}

impl ChoiceParts {
    /// A piece of a stream.
    pub(super) fn into_chunk(self, route: Route) -> Value {
        match route {
            Route::Chat => {
                let delta = match self.text {
                    Some(text) => json!({ "content": text }),
                    None => json!({}),
                };
                json!({
                    "index": self.index,
                    "delta": delta,
                    "logprobs": self.logprobs,
                    "finish_reason": self.finish_reason,
                })
            }
            Route::Classic => self.into_whole(route),
        }
    }

    /// A choice of a whole answer.
    pub(super) fn into_whole(self, route: Route) -> Value {
        let text = self.text.unwrap_or_default();
        match route {
            Route::Chat => json!({
                "index": self.index,
                "message": { "role": "assistant", "content": text, "refusal": null },
                "logprobs": self.logprobs,
                "finish_reason": self.finish_reason,
            }),
            Route::Classic => json!({
                "index": self.index,
                "text": text,
                "logprobs": self.logprobs,
                "finish_reason": self.finish_reason,
            }),
        }
    }
}

/// The delta that opens a chat choice.
pub(super) fn opening_choice(index: usize) -> Value {
    json!({
        "index": index,
        "delta": { "role": "assistant", "content": null },
        "logprobs": null,
        "finish_reason": null,
    })
}

/// Whether a token is shown in log-probabilities: the one that only ends the answer is not.
pub(super) fn is_shown(token: TokenId, ends: &[TokenId], are_ends_live: bool) -> bool {
    !(are_ends_live && ends.contains(&token))
}
