//! What the API needs of the rest of the supervisor, so that tests can put a script in its place.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;
use shared::ids::TokenId;

use crate::event_loop::{Control, ControlReply, Core, NewRequest, Rejection, Ticket};
use crate::session::log::{LogReader, Record};
use crate::status::Status;
use crate::text::{ChatOptions, TemplateError, Text};

/// A future behind a pointer.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The event loop as the API sees it; [`Core`] in the service.
pub trait Sessions: Send + Sync {
    /// Hands in a request; see [`Core::submit`].
    fn submit(&self, request: NewRequest) -> Later<'_, Result<Admitted, Rejection>>;
    /// The status now, without waiting.
    fn status(&self) -> Arc<Status>;
    /// An operator's order; see [`Core::control`].
    fn control(&self, command: Control) -> Later<'_, Result<ControlReply, String>>;
}

/// Reads one choice's token log; see [`LogReader`]. Dropping it cancels the choice.
pub trait Reader: Send {
    /// The next records, at least one. Cancel safe. Not to be called after the last.
    fn next(&mut self) -> Later<'_, Vec<Record>>;
}

/// An admitted request.
pub struct Admitted {
    /// When it was accepted, in seconds since 1970.
    pub created: u64,
    /// One reader per choice, prompt by prompt.
    pub readers: Vec<Box<dyn Reader>>,
}

impl std::fmt::Debug for Admitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admitted")
            .field("created", &self.created)
            .field("readers", &self.readers.len())
            .finish()
    }
}

impl From<Ticket> for Admitted {
    fn from(ticket: Ticket) -> Self {
        let readers =
            ticket.readers.into_iter().map(|reader| Box::new(reader) as Box<dyn Reader>).collect();
        Self { created: ticket.created, readers }
    }
}

impl Sessions for Core {
    fn submit(&self, request: NewRequest) -> Later<'_, Result<Admitted, Rejection>> {
        Box::pin(async move { Ok(Self::submit(self, request).await?.into()) })
    }

    fn status(&self) -> Arc<Status> {
        Self::status(self)
    }

    fn control(&self, command: Control) -> Later<'_, Result<ControlReply, String>> {
        Box::pin(Self::control(self, command))
    }
}

impl Reader for LogReader {
    fn next(&mut self) -> Later<'_, Vec<Record>> {
        Box::pin(Self::next(self))
    }
}

/// Text to token ids and back; [`Text`] in the service.
pub trait Words: Send + Sync {
    /// Ids of a prompt; names of control tokens in it are parsed, as llama-server does.
    fn encode_prompt(&self, text: &str) -> Vec<TokenId>;
    /// Ids of a plain text, without anything added.
    fn encode_plain(&self, text: &str) -> Vec<TokenId>;
    /// Ids of a conversation.
    fn encode_chat(
        &self,
        messages: &[Value],
        options: &ChatOptions,
    ) -> Result<Vec<TokenId>, TemplateError>;
    /// As `encode_chat`; see [`Text::encode_chat_if`].
    fn encode_chat_if(
        &self,
        messages: &[Value],
        options: &ChatOptions,
        is_wanted: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<TokenId>, TemplateError> {
        if is_wanted(0) { self.encode_chat(messages, options) } else { Ok(Vec::new()) }
    }
    /// A number of tokens that a text has at least; see [`Text::least_tokens`].
    fn least_tokens(&self, _text: &str, _parse_special: bool) -> usize {
        0
    }
    /// Tokens that end a reply.
    fn end_tokens(&self) -> &[TokenId];
    /// Size of the vocabulary.
    fn vocab_size(&self) -> usize;
    /// Bytes of a token.
    fn piece(&self, token: TokenId) -> &[u8];
}

impl Words for Text {
    fn encode_prompt(&self, text: &str) -> Vec<TokenId> {
        self.encode(text, true, true)
    }

    fn encode_plain(&self, text: &str) -> Vec<TokenId> {
        self.encode(text, false, false)
    }

    fn encode_chat(
        &self,
        messages: &[Value],
        options: &ChatOptions,
    ) -> Result<Vec<TokenId>, TemplateError> {
        Self::encode_chat(self, messages, options)
    }

    fn encode_chat_if(
        &self,
        messages: &[Value],
        options: &ChatOptions,
        is_wanted: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<TokenId>, TemplateError> {
        Self::encode_chat_if(self, messages, options, is_wanted)
    }

    fn least_tokens(&self, text: &str, parse_special: bool) -> usize {
        Self::least_tokens(self, text, parse_special)
    }

    fn end_tokens(&self) -> &[TokenId] {
        Self::end_tokens(self)
    }

    fn vocab_size(&self) -> usize {
        Self::vocab_size(self)
    }

    fn piece(&self, token: TokenId) -> &[u8] {
        Self::piece(self, token)
    }
}
