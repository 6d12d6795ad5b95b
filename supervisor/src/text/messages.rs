//! A request's messages, checked and brought into the shape that chat templates expect.

use serde_json::{Map, Value};
use shared::limits::MESSAGES_MAX;

use super::escape::Escape;
use super::template::TemplateError;

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// How a template wants a call's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arguments {
    /// As the object they say.
    Parsed,
    /// As the client's text.
    AsSent,
}

/// What a template expects of messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) arguments: Arguments,
    pub(super) knows_developer: bool,
}

/// Messages ready for a template, every string of the user's escaped.
pub(super) fn prepare(
    messages: &[Value],
    escape: &Escape,
    shape: Shape,
) -> Result<Vec<Value>, TemplateError> {
    if messages.is_empty() || messages.len() > MESSAGES_MAX {
        return Err(TemplateError::Invalid {
            param: "messages".to_owned(),
            reason: format!("holds {} messages; 1 to {MESSAGES_MAX} are accepted", messages.len()),
        });
    }
    let prepared = messages.iter().enumerate().map(|(index, message)| {
        let param = format!("messages[{index}]");
        let Value::Object(fields) = message else {
            return Err(invalid(&param, "must be an object with `role` and `content`"));
        };
        prepare_one(fields, &param, escape, shape)
    });
    prepared.collect()
}

fn prepare_one(
    fields: &Map<String, Value>,
    param: &str,
    escape: &Escape,
    shape: Shape,
) -> Result<Value, TemplateError> {
    let role_param = format!("{param}.role");
    let role = match fields.get("role") {
        Some(Value::String(role)) => role.as_str(),
        Some(_) => return Err(invalid(&role_param, "must be a string")),
        None => return Err(invalid(&role_param, "is missing")),
    };
    if !ROLES.contains(&role) {
        let start: String = role.chars().take(40).collect();
        let reason = format!("is {start:?}; these are known: {}", ROLES.join(", "));
        return Err(TemplateError::Invalid { param: role_param, reason });
    }
    let role = if role == "developer" && !shape.knows_developer { "system" } else { role };
    let mut prepared = Map::with_capacity(fields.len());
    // A role is one of ours and is compared by templates; everything else is the user's.
    prepared.insert("role".to_owned(), Value::String(role.to_owned()));
    let text = content(fields.get("content"), &format!("{param}.content"))?;
    prepared.insert("content".to_owned(), Value::String(escape.apply(&text).into_owned()));
    for (key, value) in fields {
        if key == "role" || key == "content" || value.is_null() {
            continue;
        }
        let value = if key == "tool_calls" {
            tool_calls(value, &format!("{param}.tool_calls"), shape.arguments)?
        } else {
            value.clone()
        };
        prepared.insert(escape.apply(key).into_owned(), escape.apply_deep(value));
    }
    Ok(Value::Object(prepared))
}

/// The text of a message: a string, nothing, or parts that are all text.
fn content(content: Option<&Value>, param: &str) -> Result<String, TemplateError> {
    let parts = match content {
        None | Some(Value::Null) => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        Some(_) => return Err(invalid(param, "must be a string or an array of text parts")),
    };
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        let param = format!("{param}[{index}]");
        match part.get("type") {
            Some(Value::String(kind)) if kind == "text" => {}
            Some(Value::String(kind)) => {
                let start: String = kind.chars().take(40).collect();
                let reason = format!("is of type {start:?}; this model reads only text parts");
                return Err(TemplateError::Invalid { param, reason });
            }
            _ => return Err(invalid(&param, "must be an object with a `type`, such as \"text\"")),
        }
        match part.get("text") {
            Some(Value::String(piece)) => text.push_str(piece),
            _ => return Err(invalid(&format!("{param}.text"), "must be a string")),
        }
    }
    Ok(text)
}

/// Clients send a call's arguments as JSON text; most templates want the object it says.
fn tool_calls(calls: &Value, param: &str, shape: Arguments) -> Result<Value, TemplateError> {
    let Value::Array(calls) = calls else {
        return Err(invalid(param, "must be an array"));
    };
    let mut calls = calls.clone();
    for call in &mut calls {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        if shape == Arguments::Parsed
            && let Value::String(text) = arguments
            && let Ok(object @ Value::Object(_)) = serde_json::from_str(text)
        {
            *arguments = object;
        }
    }
    Ok(Value::Array(calls))
}

fn invalid(param: &str, reason: &str) -> TemplateError {
    TemplateError::Invalid { param: param.to_owned(), reason: reason.to_owned() }
}
