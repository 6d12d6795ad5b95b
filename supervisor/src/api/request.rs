//! What chat and classic completions have in common in a request: sampling, limits, stops.
//!
//! A request that says nothing is drawn as llama-server draws it: temperature 0.8, top_k 40,
//! top_p 0.95, min_p 0.05, a random seed. `max_tokens` left out goes on to the end of the context.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

use serde_json::{Map, Value};
use shared::ids::TokenId;
use shared::limits::{LOGIT_BIAS_MAX, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX};
use shared::protocol::Sampling;

use super::error::ApiError;
use super::fields::{Fields, whole, wrong};
use super::service::Words;
use crate::event_loop::NewRequest;

/// Added to a token's logit to ban it: far below any logit, and finite as the worker demands.
const BAN: f32 = -1.0e9;

/// The common part of a request.
#[derive(Debug, Clone)]
pub(super) struct Options {
    /// How choice 0 is drawn.
    pub(super) sampling: Sampling,
    /// Choices for each prompt.
    pub(super) n: u32,
    /// Most tokens for each choice.
    pub(super) max_tokens: Option<u32>,
    /// Strings that end a choice.
    pub(super) stops: Vec<String>,
    /// Whether the model's end tokens end a choice.
    pub(super) end_tokens: bool,
    /// Whether the answer comes in pieces.
    pub(super) stream: bool,
    /// Whether a stream ends with a usage chunk.
    pub(super) include_usage: bool,
}

impl Options {
    /// Takes the common fields.
    ///
    /// # Errors
    ///
    /// 400, naming the first field that cannot be used.
    pub(super) fn take(
        fields: &mut Fields,
        words: &dyn Words,
        choices_max: u32,
    ) -> Result<Self, ApiError> {
        refuse_constraints(fields)?;
        let end_tokens = !fields.boolean("ignore_eos")?.unwrap_or(false);
        let mut sampling = take_sampling(fields, words)?;
        if !end_tokens {
            ban_end_tokens(&mut sampling, words)?;
        }
        let n = fields.integer("n", 1..=i64::from(choices_max))?.unwrap_or(1);
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let stream_options = fields.object("stream_options")?.unwrap_or_default();
        let include_usage = Fields::new(stream_options)
            .boolean("include_usage")
            .map_err(|_| {
                ApiError::field(
                    "stream_options.include_usage",
                    "`stream_options.include_usage` must be true or false",
                )
            })?
            .unwrap_or(false);
        // The model is whatever this server serves; any name is accepted, but only a name.
        fields.string("model")?;
        Ok(Self {
            sampling,
            n: u32::try_from(n).expect("bounded by choices_max"),
            max_tokens: take_max_tokens(fields)?,
            stops: take_stops(fields)?,
            end_tokens,
            stream,
            include_usage,
        })
    }

    /// Adds what the routes call differently, and looks at the whole as the worker will.
    ///
    /// # Errors
    ///
    /// 400, with what the worker would refuse.
    pub(super) fn with_logprobs(
        mut self,
        logprobs: Option<u32>,
        words: &dyn Words,
    ) -> Result<Self, ApiError> {
        self.sampling.logprobs = logprobs;
        let vocab_size = u32::try_from(words.vocab_size()).unwrap_or(u32::MAX);
        self.sampling.check(vocab_size).map_err(ApiError::invalid)?;
        Ok(self)
    }

    /// The request to the event loop for these prompts.
    #[must_use]
    pub(super) fn request(&self, prompts: Vec<Arc<[TokenId]>>, label: &str) -> NewRequest {
        let choices =
            (0..self.n).map(|choice| Sampling { choice, ..self.sampling.clone() }).collect();
        NewRequest {
            prompts,
            choices,
            max_tokens: self.max_tokens,
            stops: self.stops.clone(),
            end_tokens: self.end_tokens,
            label: label.to_owned(),
        }
    }
}

fn take_sampling(fields: &mut Fields, words: &dyn Words) -> Result<Sampling, ApiError> {
    let mut number = |name: &str, low: f64, high: f64, default: f32| {
        #[expect(clippy::cast_possible_truncation, reason = "nearest f32 of a bounded number")]
        fields.number(name, low..=high).map(|value| value.map_or(default, |value| value as f32))
    };
    let temperature = number("temperature", 0.0, 2.0, 0.8)?;
    // 0 keeps the most likely token alone, as in llama-server; so does the least number above it.
    let top_p = number("top_p", 0.0, 1.0, 0.95)?.max(f32::MIN_POSITIVE);
    let min_p = number("min_p", 0.0, 1.0, 0.05)?;
    let frequency_penalty = number("frequency_penalty", -2.0, 2.0, 0.0)?;
    let presence_penalty = number("presence_penalty", -2.0, 2.0, 0.0)?;
    // Two names for one setting: llama-server's, and that of other servers.
    let repetition_penalty = number("repetition_penalty", 0.01, 10.0, 1.0)?;
    let repeat_penalty = number("repeat_penalty", 0.01, 10.0, repetition_penalty)?;
    let top_k = fields.integer("top_k", -1..=i64::from(u32::MAX))?.unwrap_or(40);
    let last_n = fields.integer("repeat_last_n", -1..=i64::from(u32::MAX))?.unwrap_or(64);
    Ok(Sampling {
        seed: take_seed(fields)?,
        choice: 0,
        temperature,
        top_k: u32::try_from(top_k).unwrap_or(0),
        top_p,
        min_p,
        repeat_penalty,
        frequency_penalty,
        presence_penalty,
        penalty_last_n: u32::try_from(last_n).unwrap_or(u32::MAX),
        logit_bias: take_logit_bias(fields, words)?,
        logprobs: None,
    })
}

/// The seed: any whole number; absent or -1 takes a random one.
fn take_seed(fields: &mut Fields) -> Result<u64, ApiError> {
    match fields.take("seed") {
        None => Ok(random()),
        Some(value) => match (value.as_u64(), whole(&value)) {
            (Some(seed), _) => Ok(seed),
            (None, Some(-1)) => Ok(random()),
            (None, Some(seed)) => Ok(seed.cast_unsigned()),
            (None, None) => Err(wrong("seed", "a whole number", &value)),
        },
    }
}

/// 64 bits nobody can guess.
#[must_use]
pub(super) fn random() -> u64 {
    // The standard library keys each of these hashers from the system's randomness.
    RandomState::new().build_hasher().finish()
}

fn take_max_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let mut take = |name: &str| -> Result<Option<u32>, ApiError> {
        let Some(value) = fields.take(name) else { return Ok(None) };
        match whole(&value) {
            Some(-1) => Ok(None),
            Some(count) if count >= 1 => Ok(Some(u32::try_from(count).unwrap_or(u32::MAX))),
            _ => Err(wrong(name, "a whole number of at least 1 (or -1 for no limit)", &value)),
        }
    };
    // Three names for one setting: OpenAI's, its older one, and llama-server's.
    let (completion, plain) = (take("max_completion_tokens")?, take("max_tokens")?);
    let predict = take("n_predict")?;
    Ok(completion.or(plain).or(predict))
}

/// An answer whose end tokens are to be ignored never draws one: what a model writes after its own
/// end is an invented next turn.
fn ban_end_tokens(sampling: &mut Sampling, words: &dyn Words) -> Result<(), ApiError> {
    sampling.logit_bias.extend(words.end_tokens().iter().map(|token| (*token, BAN)));
    bound_biases(sampling.logit_bias.len())
}

/// What this server cannot enforce is refused by its name: an answer that only may be as asked is
/// worse than none. A value that asks for nothing passes.
fn refuse_constraints(fields: &mut Fields) -> Result<(), ApiError> {
    let is_plain = |name: &str, value: &Value| match (name, value) {
        ("grammar", Value::String(grammar)) => grammar.is_empty(),
        ("functions", Value::Array(functions)) => functions.is_empty(),
        ("function_call", Value::String(call)) => call == "none" || call == "auto",
        ("response_format", Value::Object(format)) => match format.get("type") {
            None | Some(Value::Null) => true,
            Some(kind) => kind == "text",
        },
        _ => false,
    };
    for name in ["grammar", "json_schema", "functions", "function_call", "response_format"] {
        match fields.take(name) {
            Some(value) if !is_plain(name, &value) => {
                let message = match name {
                    "response_format" => {
                        "`response_format` can only be of type \"text\" on this server".to_owned()
                    }
                    "functions" | "function_call" => {
                        format!("`{name}` is not supported by this server; use `tools`")
                    }
                    _ => format!("`{name}` is not supported by this server"),
                };
                return Err(ApiError::field(name, message));
            }
            _ => {}
        }
    }
    Ok(())
}

fn take_stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let expected = format!(
        "a string or a list of at most {STOP_STRINGS_MAX} strings of at most \
         {STOP_STRING_BYTES_MAX} bytes"
    );
    let stops = match fields.take("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop],
        Some(Value::Array(items)) => items
            .into_iter()
            .map(|item| match item {
                Value::String(stop) => Ok(stop),
                other => Err(wrong("stop", &expected, &other)),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(wrong("stop", &expected, &other)),
    };
    if stops.len() > STOP_STRINGS_MAX || stops.iter().any(|stop| stop.len() > STOP_STRING_BYTES_MAX)
    {
        return Err(ApiError::field("stop", format!("`stop` must be {expected}")));
    }
    // An empty string would stop everything at once; llama-server drops it too.
    Ok(stops.into_iter().filter(|stop| !stop.is_empty()).collect())
}

/// `{"id": bias}`, or llama-server's `[[id or text, bias or false], …]`.
fn take_logit_bias(
    fields: &mut Fields,
    words: &dyn Words,
) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let mut biases = Vec::new();
    match fields.take("logit_bias") {
        None => {}
        Some(Value::Object(map)) => map_biases(map, words, &mut biases)?,
        Some(Value::Array(items)) => {
            bound_biases(items.len())?;
            for item in &items {
                let Some([token, bias]) = item.as_array().map(Vec::as_slice) else {
                    return Err(wrong("logit_bias", "a list of pairs", item));
                };
                let bias = bias_value(bias)?;
                let tokens = match token {
                    Value::String(text) => words.encode_plain(text),
                    id => vec![bias_token(whole(id), words)?],
                };
                biases.extend(tokens.into_iter().map(|token| (token, bias)));
            }
        }
        Some(other) => return Err(wrong("logit_bias", "an object or a list of pairs", &other)),
    }
    bound_biases(biases.len())?;
    Ok(biases)
}

fn map_biases(
    map: Map<String, Value>,
    words: &dyn Words,
    biases: &mut Vec<(TokenId, f32)>,
) -> Result<(), ApiError> {
    bound_biases(map.len())?;
    for (key, bias) in map {
        let token = bias_token(key.trim().parse().ok(), words)?;
        biases.push((token, bias_value(&bias)?));
    }
    Ok(())
}

fn bound_biases(count: usize) -> Result<(), ApiError> {
    if count > LOGIT_BIAS_MAX {
        let message = format!("`logit_bias` must have at most {LOGIT_BIAS_MAX} entries");
        return Err(ApiError::field("logit_bias", message));
    }
    Ok(())
}

fn bias_token(id: Option<i64>, words: &dyn Words) -> Result<TokenId, ApiError> {
    id.and_then(|id| token(id, words)).ok_or_else(|| {
        let message = format!("`logit_bias` must name token ids below {}", words.vocab_size());
        ApiError::field("logit_bias", message)
    })
}

fn bias_value(value: &Value) -> Result<f32, ApiError> {
    match (value, value.as_f64()) {
        (Value::Bool(false), _) => Ok(BAN),
        #[expect(clippy::cast_possible_truncation, reason = "nearest f32 of a bounded number")]
        (_, Some(bias)) if (-100.0..=100.0).contains(&bias) => Ok(bias as f32),
        _ => Err(wrong("logit_bias", "biases between -100 and 100, or false", value)),
    }
}

/// A token id inside the vocabulary.
#[must_use]
pub(super) fn token(id: i64, words: &dyn Words) -> Option<TokenId> {
    let id = TokenId(u32::try_from(id).ok()?);
    (id.index() < words.vocab_size()).then_some(id)
}
