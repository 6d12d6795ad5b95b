//! The one task that owns all state.

mod request;

use std::sync::Arc;

use tokio::task::JoinHandle;

use shared::config::Config;
use shared::ids::TokenId;

use crate::status::Status;

pub use request::{Control, ControlReply, NewRequest, Rejection, Ticket};

/// How tokens become text; [`crate::text::Text`] in the service, something small in tests.
pub trait Vocabulary: Send + Sync {
    /// Tokens that end a sequence.
    fn end_tokens(&self) -> &[TokenId];
    /// A fresh detokenizer.
    fn detokenizer(self: Arc<Self>) -> Box<dyn TokenText>;
}

/// The text of one token sequence, as it grows.
pub trait TokenText: Send {
    /// Appends the whole code points that `token` completes.
    fn push(&mut self, token: TokenId, out: &mut String);
    /// Appends what is left at the end, broken or not.
    fn finish(&mut self, out: &mut String);
}

/// What the event loop is started with.
pub struct CoreOptions {
    /// The configuration.
    pub config: Config,
    /// Tokens to text.
    pub vocabulary: Arc<dyn Vocabulary>,
    /// Name the API gives the model.
    pub model_name: String,
    /// Architecture from the weight file's header.
    pub arch: String,
}

/// The handle of the event loop; cheap to clone.
#[derive(Debug, Clone)]
pub struct Core {}

impl Core {
    /// Starts the event loop, which starts the first worker. Must be called in a tokio runtime.
    /// The task ends after [`Core::drain`], when the worker is reaped and every log is ended.
    pub fn start(_options: CoreOptions) -> (Self, JoinHandle<()>) {
        (Self {}, tokio::spawn(async {}))
    }

    /// Hands in a request.
    ///
    /// # Errors
    ///
    /// A [`Rejection`] if it cannot be accepted now; nothing was computed.
    pub async fn submit(&self, _request: NewRequest) -> Result<Ticket, Rejection> {
        std::future::pending().await
    }

    /// The status now. Never waits on the event loop.
    #[must_use]
    pub fn status(&self) -> Arc<Status> {
        unreachable!("lands with the loop")
    }

    /// Carries out an operator's order. Returns when it is accepted, not when it is done.
    ///
    /// # Errors
    ///
    /// Why the order makes no sense now, in words.
    pub async fn control(&self, _command: Control) -> Result<ControlReply, String> {
        std::future::pending().await
    }

    /// Stops the service: refuses new requests and waits for streams in flight, at most for the
    /// configured time. A second call ends them at once. Await the loop's task for the end.
    pub fn drain(&self) {}
}
