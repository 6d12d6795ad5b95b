//! `POST /v1/chat/completions`: a conversation, rendered with the model's own template.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::Value;
use shared::limits::{MESSAGES_MAX, TOP_LOGPROBS_MAX};

use super::App;
use super::answer::Route;
use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::generate::{self, Prepared};
use super::request::Options;
use super::service::Words;
use crate::text::{ChatOptions, TemplateError};

/// Tools in one request.
const TOOLS_MAX: usize = 1024;

/// The route.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    generate::answer(app, headers, body, Route::Chat, prepare).await
}

/// Reads the route's fields.
pub(super) fn prepare(
    mut fields: Fields,
    words: &dyn Words,
    choices_max: u32,
) -> Result<Prepared, ApiError> {
    let options = Options::take(&mut fields, words, choices_max)?
        .with_logprobs(take_logprobs(&mut fields)?, words)?;
    let chat = ChatOptions {
        add_generation_prompt: fields.boolean("add_generation_prompt")?.unwrap_or(true),
        kwargs: fields.object("chat_template_kwargs")?.unwrap_or_default(),
        tools: take_tools(&mut fields)?,
    };
    let messages = take_messages(&mut fields)?;
    fields.finish();
    let prompt = words.encode_chat(&messages, &chat)?;
    if prompt.is_empty() {
        return Err(ApiError::field("messages", "`messages` give an empty prompt"));
    }
    Ok(Prepared { prompts: vec![prompt.into()], options })
}

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> Self {
        let message = error.to_string();
        match error.param() {
            Some(param) => Self::field(param, message),
            None => Self::not_supported(message),
        }
    }
}

fn take_messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let messages = match fields.take("messages") {
        None => return Err(ApiError::field("messages", "`messages` is missing")),
        Some(Value::Array(messages)) => messages,
        Some(other) => return Err(wrong("messages", "a list of messages", &other)),
    };
    if messages.is_empty() || messages.len() > MESSAGES_MAX {
        let message = format!(
            "`messages` must have between 1 and {MESSAGES_MAX} messages, not {}",
            messages.len()
        );
        return Err(ApiError::field("messages", message));
    }
    for (index, message) in messages.iter().enumerate() {
        if !message.is_object() {
            return Err(wrong(&format!("messages[{index}]"), "an object", message));
        }
    }
    Ok(messages)
}

fn take_logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=i64::from(TOP_LOGPROBS_MAX))?;
    match (wanted, top) {
        (false, Some(1..)) => {
            Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"))
        }
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.map_or(0, |top| u32::try_from(top).expect("bounded above")))),
    }
}

/// Tools are shown to the model by its template; that one is called cannot be enforced.
fn take_tools(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let choice = fields.take("tool_choice");
    let tools = match fields.take("tools") {
        None => None,
        Some(Value::Array(tools)) if tools.len() <= TOOLS_MAX => {
            if let Some(other) = tools.iter().find(|tool| !tool.is_object()) {
                return Err(wrong("tools", "a list of objects", other));
            }
            (!tools.is_empty()).then_some(Value::Array(tools))
        }
        Some(other) => {
            return Err(wrong("tools", &format!("a list of at most {TOOLS_MAX} objects"), &other));
        }
    };
    match choice.as_ref().map(Value::as_str) {
        None | Some(Some("auto")) => Ok(tools),
        Some(Some("none")) => Ok(None),
        Some(_) => Err(ApiError::field(
            "tool_choice",
            "`tool_choice` can only be \"auto\" or \"none\" on this server",
        )),
    }
}
