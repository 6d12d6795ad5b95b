//! Text to token ids and back: tokenizer, chat template, detokenizer, stop strings.
//!
//! The worker knows only ids; everything about text is here. [`Text`] is built once from the
//! weight file's metadata and never changes.
//!
//! What a user types is never a control token: [`Text::encode_chat`] keeps the marks of the
//! template apart from equal-looking text inside messages.

#![forbid(unsafe_code)]

mod bound;
mod command;
mod detokenizer;
mod escape;
mod messages;
mod pretokenizer;
mod python;
mod stop;
mod template;
mod tokenizer;
mod vocabulary;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;
use shared::gguf::{Gguf, GgufError};
use shared::ids::TokenId;

pub use command::{TokenizeError, tokenize_command};
pub use detokenizer::Detokenizer;
pub use stop::{StopHit, StopMatcher};
pub use template::{ChatOptions, TemplateError};

use template::Template;
use tokenizer::Tokenizer;
use vocabulary::Vocabulary;

/// Why a weight file's vocabulary cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The metadata is damaged or lacks something.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A kind of tokenizer this build does not have.
    #[error("the tokenizer model `{0}` is not supported; `gpt2` and `llama` are")]
    Model(String),
    /// A way of cutting text into words this build does not have.
    #[error("the pre-tokenizer `{name}` is not supported; these are: {supported}")]
    Pre {
        /// As the weight file names it.
        name: String,
        /// All names known, separated by commas.
        supported: String,
    },
    /// The vocabulary contradicts itself; says how.
    #[error("{0}")]
    Invalid(String),
}

/// Everything about text that a model defines. Immutable; shared behind an [`Arc`].
#[derive(Debug)]
pub struct Text {
    vocabulary: Arc<Vocabulary>,
    tokenizer: Tokenizer,
    template: Template,
}

impl Text {
    /// Reads vocabulary and chat template from a weight file's metadata.
    ///
    /// A chat template that cannot be compiled does not make the model unusable: it is logged,
    /// and every chat is then refused with the reason.
    ///
    /// # Errors
    ///
    /// [`TextError`] names what the tokenizer needs and does not find.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TextError> {
        let vocabulary = Arc::new(Vocabulary::from_gguf(gguf)?);
        let tokenizer = Tokenizer::new(&gguf.metadata, Arc::clone(&vocabulary))?;
        let source = gguf.metadata.str("tokenizer.chat_template")?;
        let template = Template::new(source, &vocabulary)?;
        Ok(Self { vocabulary, tokenizer, template })
    }

    /// Token ids of a text.
    ///
    /// `add_special` puts the begin-of-text token in front (and the end-of-text token behind) if
    /// the model wants it. With `parse_special`, names of control tokens in the text become those
    /// tokens; otherwise they are text like any other.
    #[must_use]
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<TokenId> {
        self.tokenizer.encode(text, add_special, parse_special)
    }

    /// Token ids of a conversation, rendered with the model's chat template.
    ///
    /// # Errors
    ///
    /// [`TemplateError`]; all but [`TemplateError::Unusable`] are the client's to mend.
    pub fn encode_chat(
        &self,
        messages: &[Value],
        options: &ChatOptions,
    ) -> Result<Vec<TokenId>, TemplateError> {
        let rendered = self.template.render(messages, options)?;
        Ok(self.tokenizer.encode_rendered(&rendered, self.template.escape()))
    }

    /// As [`Text::encode_chat`], but asks between the template and the tokens: `is_wanted` is
    /// told how many tokens there are at least, and if it says no, none are made.
    ///
    /// # Errors
    ///
    /// As [`Text::encode_chat`].
    pub fn encode_chat_if(
        &self,
        messages: &[Value],
        options: &ChatOptions,
        is_wanted: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<TokenId>, TemplateError> {
        let rendered = self.template.render(messages, options)?;
        let escape = self.template.escape();
        if !is_wanted(self.tokenizer.least_rendered(&rendered, escape)) {
            return Ok(Vec::new());
        }
        Ok(self.tokenizer.encode_rendered(&rendered, escape))
    }

    /// A number of tokens that [`Text::encode`] gives at least, for far less work.
    #[must_use]
    pub fn least_tokens(&self, text: &str, parse_special: bool) -> usize {
        self.tokenizer.least(text, parse_special)
    }

    /// The tokens that end a reply.
    #[must_use]
    pub fn end_tokens(&self) -> &[TokenId] {
        &self.vocabulary.ends
    }

    /// Number of tokens in the vocabulary.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.tokens.len()
    }

    /// The bytes of a token: not necessarily whole code points. Control tokens give their name;
    /// an id outside the vocabulary gives nothing.
    #[must_use]
    pub fn piece(&self, token: TokenId) -> &[u8] {
        self.vocabulary.piece(token)
    }

    /// A detokenizer at the start of a text.
    #[must_use]
    pub fn detokenizer(self: &Arc<Self>) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.vocabulary))
    }
}
