//! `POST /v1/completions`: prompts as they are, no template.
//!
//! Names of control tokens in a prompt are control tokens, as in llama-server: whoever writes a
//! raw prompt writes the template too.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;
use shared::ids::TokenId;
use shared::limits::SEQUENCES_MAX;

use super::App;
use super::answer::Route;
use super::error::ApiError;
use super::fields::{Fields, whole, wrong};
use super::generate::{self, Prepared};
use super::request::{Options, token};
use super::service::Words;

/// Prompts in one request.
const PROMPTS_MAX: usize = 64;

/// Classic requests may ask for this many rivals of each token.
const LOGPROBS_MAX: i64 = shared::limits::TOP_LOGPROBS_MAX as i64;

/// The route.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    generate::answer(app, headers, body, Route::Classic, prepare).await
}

/// Reads the route's fields.
pub(super) fn prepare(
    mut fields: Fields,
    words: &dyn Words,
    choices_max: u32,
) -> Result<Prepared, ApiError> {
    refuse_unsupported(&mut fields)?;
    let options = Options::take(&mut fields, words, choices_max)?;
    let logprobs = fields
        .integer("logprobs", 0..=LOGPROBS_MAX)?
        .map(|count| u32::try_from(count).expect("bounded above"));
    let options = options.with_logprobs(logprobs, words)?;
    let prompts = match fields.take("prompt") {
        Some(prompt) => {
            bound_sequences(&prompt, options.n)?;
            read_prompts(prompt, words)?
        }
        None => return Err(ApiError::field("prompt", "`prompt` is missing")),
    };
    fields.finish();
    Ok(Prepared { prompts, options })
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    let refuse = |name: &str| {
        Err(ApiError::field(name, format!("`{name}` is not supported by this server")))
    };
    if fields.boolean("echo")?.unwrap_or(false) {
        return refuse("echo");
    }
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return refuse("suffix");
    }
    if fields.integer("best_of", 1..=i64::from(u32::MAX))?.unwrap_or(1) > 1 {
        return refuse("best_of");
    }
    Ok(())
}

/// Before any prompt is turned into tokens: a long list must not cost work to be refused.
fn bound_sequences(prompt: &Value, n: u32) -> Result<(), ApiError> {
    let prompts = match prompt.as_array() {
        Some(items) if !items.first().is_some_and(Value::is_number) => items.len(),
        _ => 1,
    };
    if prompts > PROMPTS_MAX {
        let message = format!("`prompt` must have at most {PROMPTS_MAX} prompts");
        return Err(ApiError::field("prompt", message));
    }
    if prompts * n as usize > SEQUENCES_MAX {
        let message = format!(
            "`prompt` has {prompts} prompts, which with `n` = {n} make {} answers; one request \
             may ask for at most {SEQUENCES_MAX}",
            prompts * n as usize
        );
        return Err(ApiError::field("prompt", message));
    }
    Ok(())
}

/// A text, a list of texts, a list of ids, or a list of lists of ids.
fn read_prompts(prompt: Value, words: &dyn Words) -> Result<Vec<Arc<[TokenId]>>, ApiError> {
    let prompts = match prompt {
        Value::String(text) => vec![words.encode_prompt(&text)],
        Value::Array(items) if items.first().is_some_and(Value::is_number) => {
            vec![read_ids(&items, words)?]
        }
        Value::Array(items) => {
            items.iter().map(|item| read_prompt(item, words)).collect::<Result<_, _>>()?
        }
        other => return Err(wrong("prompt", EXPECTED, &other)),
    };
    if prompts.is_empty() || prompts.iter().any(Vec::is_empty) {
        return Err(ApiError::field("prompt", "`prompt` must have at least one token"));
    }
    Ok(prompts.into_iter().map(Arc::from).collect())
}

const EXPECTED: &str = "a string, a list of strings, or lists of token ids";

fn read_prompt(prompt: &Value, words: &dyn Words) -> Result<Vec<TokenId>, ApiError> {
    match prompt {
        Value::String(text) => Ok(words.encode_prompt(text)),
        Value::Array(items) => read_ids(items, words),
        other => Err(wrong("prompt", EXPECTED, other)),
    }
}

fn read_ids(items: &[Value], words: &dyn Words) -> Result<Vec<TokenId>, ApiError> {
    let expected = || format!("token ids below {}", words.vocab_size());
    items
        .iter()
        .map(|item| {
            whole(item)
                .and_then(|id| token(id, words))
                .ok_or_else(|| wrong("prompt", &expected(), item))
        })
        .collect()
}
