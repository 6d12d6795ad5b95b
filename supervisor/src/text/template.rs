//! The model's chat template: conversation to prompt text.
//!
//! Templates are written for Jinja2 as transformers runs it; what they use beyond minijinja's own
//! is added here and in [`super::python`]. A template is bounded in steps and in output.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value as Jinja};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use regex::{Captures, Regex};
use serde_json::{Map, Value};
use shared::limits::PROMPT_BYTES_MAX;

use super::escape::Escape;
use super::messages::{Arguments, Shape};
use super::vocabulary::Vocabulary;
use super::{TextError, messages, python};

/// Steps a template may take: a few seconds at most, and far beyond what the longest
/// conversation needs.
const STEPS_MAX: u64 = 20_000_000;

/// Longest template accepted, in bytes. The longest published ones have some 30 KB.
const TEMPLATE_BYTES_MAX: usize = 1024 * 1024;

const NAME: &str = "chat_template";

/// For models that bring no template.
const CHATML: &str = "{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}";

/// What a request says besides its messages.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatOptions {
    /// End the prompt with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further variables for the template (`enable_thinking` and the like). Those that the
    /// template contract defines itself cannot be overridden.
    pub kwargs: Map<String, Value>,
    /// Tools as the OpenAI API describes them.
    pub tools: Option<Value>,
}

impl Default for ChatOptions {
    /// A plain conversation to be answered.
    fn default() -> Self {
        Self { add_generation_prompt: true, kwargs: Map::new(), tools: None }
    }
}

/// Why a conversation could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A field of the request is not what it must be.
    #[error("`{param}` {reason}")]
    Invalid {
        /// The field, as in `messages[2].role`.
        param: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The template itself refuses the conversation, in its own words.
    #[error("the model's chat template refuses this conversation: {0}")]
    Raised(String),
    /// The template failed on this conversation.
    #[error("the model's chat template failed: {0}")]
    Failed(String),
    /// The prompt is longer than any context.
    #[error("the rendered prompt is longer than {PROMPT_BYTES_MAX} bytes")]
    TooLong,
    /// The template took too many steps.
    #[error("the model's chat template did not finish within {STEPS_MAX} steps")]
    TooSlow,
    /// The model's template cannot be used at all. Not the client's fault.
    #[error("the model's chat template cannot be used: {0}")]
    Unusable(String),
}

impl TemplateError {
    /// The field of the request to blame, if it is one.
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Invalid { param, .. } => Some(param),
            Self::Raised(_) | Self::Failed(_) | Self::TooLong | Self::TooSlow => Some("messages"),
            Self::Unusable(_) => None,
        }
    }
}

/// A compiled template, or the reason there is none.
#[derive(Debug)]
pub(super) struct Template {
    environment: Result<Environment<'static>, String>,
    escape: Escape,
    knows_developer: bool,
    bos: String,
    eos: String,
}

impl Template {
    /// Compiles the template of a weight file; `None` takes ChatML.
    pub(super) fn new(source: Option<&str>, vocabulary: &Vocabulary) -> Result<Self, TextError> {
        let source = source.unwrap_or_else(|| {
            tracing::warn!("the weight file brings no chat template; ChatML is used");
            CHATML
        });
        let environment = compile(source);
        if let Err(reason) = &environment {
            tracing::warn!("the chat template cannot be compiled, chats are refused: {reason}");
        }
        Ok(Self {
            environment,
            escape: Escape::new(vocabulary)?,
            knows_developer: source.contains("developer"),
            bos: vocabulary.name(vocabulary.bos).to_owned(),
            eos: vocabulary.name(vocabulary.eos).to_owned(),
        })
    }

    /// What marks the user's text in a rendered prompt.
    pub(super) fn escape(&self) -> &Escape {
        &self.escape
    }

    /// The prompt text, with the user's text escaped.
    pub(super) fn render(
        &self,
        messages: &[Value],
        options: &ChatOptions,
    ) -> Result<String, TemplateError> {
        let environment = self.environment.as_ref();
        let environment = environment.map_err(|why| TemplateError::Unusable(why.clone()))?;
        let template = environment.get_template(NAME);
        let template = template.map_err(|error| TemplateError::Unusable(describe(&error)))?;
        let first = run(&template, &self.context(messages, options, Arguments::Parsed)?);
        // A few templates want a call's arguments as the text that the client sent.
        let has_calls = messages.iter().any(|message| message.get("tool_calls").is_some());
        match first {
            Err(TemplateError::Failed(_)) if has_calls => {
                run(&template, &self.context(messages, options, Arguments::AsSent)?).or(first)
            }
            first => first,
        }
    }

    fn context(
        &self,
        messages: &[Value],
        options: &ChatOptions,
        arguments: Arguments,
    ) -> Result<Map<String, Value>, TemplateError> {
        let shape = Shape { arguments, knows_developer: self.knows_developer };
        let messages = messages::prepare(messages, &self.escape, shape)?;
        let mut context = Map::new();
        for (key, value) in &options.kwargs {
            context.insert(key.clone(), self.escape.apply_deep(value.clone()));
        }
        let tools = options.tools.clone().map_or(Value::Null, |t| self.escape.apply_deep(t));
        context.insert("messages".to_owned(), Value::Array(messages));
        context.insert("tools".to_owned(), tools);
        context.entry("documents").or_insert(Value::Null);
        context.insert("add_generation_prompt".to_owned(), options.add_generation_prompt.into());
        context.insert("bos_token".to_owned(), self.bos.as_str().into());
        context.insert("eos_token".to_owned(), self.eos.as_str().into());
        Ok(context)
    }
}

fn run(
    template: &minijinja::Template<'_, '_>,
    context: &Map<String, Value>,
) -> Result<String, TemplateError> {
    let mut out = Bounded { bytes: Vec::new(), is_full: false };
    if let Err(error) = template.render_captured_to(Jinja::from_serialize(context), &mut out) {
        return Err(if out.is_full { TemplateError::TooLong } else { blame(&error) });
    }
    String::from_utf8(out.bytes).map_err(|error| TemplateError::Failed(error.to_string()))
}

fn compile(source: &str) -> Result<Environment<'static>, String> {
    if source.len() > TEMPLATE_BYTES_MAX {
        return Err(format!("it is longer than {TEMPLATE_BYTES_MAX} bytes"));
    }
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_keep_trailing_newline(false);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(STEPS_MAX));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| python::strftime_now(format));
    // Python's None has no elements; minijinja's is an empty sequence.
    environment.add_test("iterable", |value: &Jinja| !value.is_none() && value.try_iter().is_ok());
    environment
        .add_filter("tojson", |value: &Jinja, options: Kwargs| python::to_json(value, &options));
    environment
        .add_template_owned(NAME, without_generation_marks(source))
        .map_err(|error| describe(&error))?;
    Ok(environment)
}

/// transformers lets templates mark what the assistant says (`{% generation %}`), for training.
/// The marks print nothing.
fn without_generation_marks(source: &str) -> String {
    let mark = Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}");
    let mark = mark.expect("the pattern above is well formed");
    let replaced = mark.replace_all(source, |found: &Captures<'_>| {
        let statement = if found.get(2).is_some() { "endif" } else { "if true" };
        format!("{{%{} {statement} {}%}}", &found[1], &found[3])
    });
    replaced.into_owned()
}

/// What a template said with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: &str) -> Result<Jinja, Error> {
    let raised = Raised(message.chars().take(1000).collect());
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(raised))
}

fn blame(error: &Error) -> TemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        let kind = cause.downcast_ref::<Error>().map(Error::kind);
        if kind == Some(ErrorKind::OutOfFuel) {
            return TemplateError::TooSlow;
        }
        source = cause.source();
    }
    TemplateError::Failed(describe(error))
}

fn describe(error: &Error) -> String {
    let detail = error.detail().map_or_else(String::new, |detail| format!(": {detail}"));
    let line = error.line().map_or_else(String::new, |line| format!(" (line {line})"));
    format!("{}{detail}{line}", error.kind())
}

/// Collects output up to the longest prompt.
struct Bounded {
    bytes: Vec<u8>,
    is_full: bool,
}

impl Write for Bounded {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if piece.len() > PROMPT_BYTES_MAX - self.bytes.len() {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
