//! What a client side hands to the event loop and gets back: requests, tickets, refusals, orders.

use std::sync::Arc;

use shared::ids::{Incarnation, RequestId, TokenId};
use shared::protocol::Sampling;

use crate::session::log::LogReader;
use crate::worker::exit::public;

/// A request that was read, checked and turned into tokens. It is accepted whole or not at all;
/// one session is made for each choice of each prompt.
#[derive(Debug, Clone)]
pub struct NewRequest {
    /// The prompts. At least one, each of at least one token.
    pub prompts: Vec<Arc<[TokenId]>>,
    /// How each choice of the first prompt is drawn; its length is `n`. At least one. Later
    /// prompts are drawn alike, but their `choice` counts on, so that equal prompts differ.
    pub choices: Vec<Sampling>,
    /// Most tokens to emit per choice; `None` goes on to the end of the context.
    pub max_tokens: Option<u32>,
    /// Strings that end a choice; they are not part of its text.
    pub stops: Vec<String>,
    /// Whether the model's own end tokens end a choice (false for `ignore_eos`).
    pub end_tokens: bool,
    /// What the journal calls this request, e.g. the route.
    pub label: String,
}

/// An accepted request. Dropping a reader cancels its choice unless that is over.
#[derive(Debug)]
pub struct Ticket {
    /// The number of the request.
    pub request: RequestId,
    /// When it was accepted, in seconds since 1970.
    pub created: u64,
    /// One reader per choice: those of the first prompt, then those of the second, and so on.
    pub readers: Vec<LogReader>,
}

/// Why a request was not accepted. Nothing was computed for it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Rejection {
    /// As many requests wait as may.
    #[error("{limit} requests are waiting already, the limit; retry after {retry_after_s} s")]
    QueueFull {
        /// Requests that may wait.
        limit: u32,
        /// When to come back, in seconds.
        retry_after_s: u32,
    },
    /// The model is being loaded for the first time.
    #[error("the model is loading ({done_bytes} of {total_bytes} bytes)")]
    Loading {
        /// When to come back, in seconds.
        retry_after_s: u32,
        /// Weight bytes loaded.
        done_bytes: u64,
        /// Weight bytes in all; 0 while unknown.
        total_bytes: u64,
    },
    /// The worker failed again and again; it is still tried.
    #[error("the service is degraded: {}; retry after {retry_after_s} s", public(cause))]
    Degraded {
        /// What the last failure was.
        cause: String,
        /// When the next start is due, in seconds.
        retry_after_s: u32,
    },
    /// The operator, or a fault that a restart cannot cure, holds the worker.
    #[error("the service is held: {}", public(cause))]
    Held {
        /// Who or what holds it.
        cause: String,
    },
    /// The service is stopping.
    #[error("the service is stopping")]
    Draining,
    /// A prompt leaves no room for one token.
    #[error(
        "a prompt has {n_prompt} tokens; the context holds {n_ctx}, at least one is needed \
             for the answer"
    )]
    TooLong {
        /// Tokens of the longest prompt.
        n_prompt: u32,
        /// Context length per sequence, in tokens.
        n_ctx: u32,
    },
}

/// An order from the control socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Replace the worker. Also retries at once a worker that is held by a fault or backing off.
    Recycle {
        /// At once, with replay, instead of letting what runs finish first.
        now: bool,
    },
    /// Let what runs finish, stop the worker, and start none until `Release`.
    Hold,
    /// Undo `Hold`, and retry at once a worker held by a fault.
    Release,
}

/// What an order did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlReply {
    /// One sentence for the operator.
    pub message: String,
    /// The worker life the order was about, if one was running.
    pub incarnation: Option<Incarnation>,
}
