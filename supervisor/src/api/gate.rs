//! What stands before the expensive part of a request: no text is turned into tokens that cannot
//! be served, and not more texts at once than there are cores.
//!
//! The event loop decides at the end; what is refused here it would refuse too.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use shared::ids::TokenId;
use shared::limits::LOGIT_BIAS_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use super::service::{Sessions, Words};
use crate::event_loop::Rejection;
use crate::status::{ServiceState, Status};
use crate::text::{ChatOptions, TemplateError};

/// Bodies above this size are large.
const SMALL_BYTES_MAX: usize = 64 * 1024;

/// How long a request waits for its turn.
const TURN_WAIT_MAX: Duration = Duration::from_secs(30);

/// When a client that got no turn should come back, in seconds.
const TURN_RETRY_S: u32 = 10;

/// Turns at reading requests; one desk for the whole API. Large ones have only half of it, so
/// that a small one does not wait for them.
#[derive(Debug)]
pub(super) struct Desk {
    all: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

/// A turn. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _permits: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
}

impl Desk {
    /// A desk with as many places as there are cores, and at least two.
    #[must_use]
    pub(super) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
        Self { all: Arc::new(Semaphore::new(cores)), large: Arc::new(Semaphore::new(cores / 2)) }
    }

    /// A turn for a body of that many bytes.
    ///
    /// # Errors
    ///
    /// 503 if none comes up in time.
    pub(super) async fn turn(&self, bytes: usize) -> Result<Turn, ApiError> {
        let permits = async {
            let one = |of: &Arc<Semaphore>| Arc::clone(of).acquire_owned();
            let open = "the semaphore is never closed";
            let large = match bytes {
                0..=SMALL_BYTES_MAX => None,
                _ => Some(one(&self.large).await.expect(open)),
            };
            (one(&self.all).await.expect(open), large)
        };
        let busy = "too many requests are being read; try again";
        let permits = tokio::time::timeout(TURN_WAIT_MAX, permits)
            .await
            .map_err(|_| ApiError::unavailable("busy", busy, Some(TURN_RETRY_S)))?;
        Ok(Turn { _permits: permits })
    }
}

/// [`Words`] that stop turning texts into tokens as soon as the request cannot be served. Ask
/// [`Gate::refusal`] before anything that they gave is used.
pub(super) struct Gate {
    words: Arc<dyn Words>,
    sessions: Arc<dyn Sessions>,
    queue_limit: u32,
    /// Context length, in tokens; 0 while unknown.
    n_ctx: u32,
    refusal: OnceLock<ApiError>,
    /// Tokens of texts that are no prompt.
    plain: AtomicUsize,
}

impl Gate {
    /// A gate for one request.
    pub(super) fn new(
        words: Arc<dyn Words>,
        sessions: Arc<dyn Sessions>,
        queue_limit: u32,
    ) -> Self {
        let n_ctx = sessions.status().model.n_ctx;
        let (refusal, plain) = (OnceLock::new(), AtomicUsize::new(0));
        Self { words, sessions, queue_limit, n_ctx, refusal, plain }
    }

    /// Why the request cannot be served, if it was seen that it cannot.
    pub(super) fn refusal(self) -> Option<ApiError> {
        self.refusal.into_inner()
    }

    /// Whether a prompt of at least that many tokens is worth turning into tokens.
    fn lets_pass(&self, least: usize) -> bool {
        if self.refusal.get().is_some() {
            return false;
        }
        let least = u32::try_from(least).unwrap_or(u32::MAX);
        let refusal = if self.n_ctx > 0 && least >= self.n_ctx {
            Some(ApiError::far_too_long(least, self.n_ctx))
        } else {
            refusal(&self.sessions.status(), self.queue_limit).map(ApiError::from)
        };
        match refusal {
            Some(refusal) => {
                let _ = self.refusal.set(refusal);
                false
            }
            None => true,
        }
    }
}

/// What the event loop would say to any request, as far as the status tells.
fn refusal(status: &Status, queue_limit: u32) -> Option<Rejection> {
    let cause = || status.cause.clone().unwrap_or_default();
    match status.state {
        ServiceState::Draining => Some(Rejection::Draining),
        ServiceState::Held => Some(Rejection::Held { cause: cause() }),
        ServiceState::Loading => {
            let (done_bytes, total_bytes) =
                status.worker.loading.map_or((0, 0), |now| (now.done_bytes, now.total_bytes));
            Some(Rejection::Loading { retry_after_s: 2, done_bytes, total_bytes })
        }
        ServiceState::Degraded => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
            let wait = status.retry_at.map_or(2, |at| at.saturating_sub(now));
            let retry_after_s = u32::try_from(wait).unwrap_or(u32::MAX);
            Some(Rejection::Degraded { cause: cause(), retry_after_s })
        }
        // With a limit of zero a request may still find a free slot.
        _ if status.requests.queued >= u64::from(queue_limit.max(1)) => {
            // Half of those that wait have to be served first, or thereabouts.
            let retry_after_s = (queue_limit / 2).clamp(1, 30);
            Some(Rejection::QueueFull { limit: queue_limit, retry_after_s })
        }
        _ => None,
    }
}

impl Words for Gate {
    fn encode_prompt(&self, text: &str) -> Vec<TokenId> {
        if !self.lets_pass(self.words.least_tokens(text, true)) {
            return Vec::new();
        }
        self.words.encode_prompt(text)
    }

    fn encode_plain(&self, text: &str) -> Vec<TokenId> {
        let so_far = self.plain.load(Ordering::Relaxed);
        let least = self.words.least_tokens(text, false);
        let tokens = if so_far + least > LOGIT_BIAS_MAX {
            // More than may be used in any case: that they are too many is all that matters.
            vec![TokenId(0); LOGIT_BIAS_MAX + 1 - so_far.min(LOGIT_BIAS_MAX)]
        } else {
            self.words.encode_plain(text)
        };
        self.plain.fetch_add(tokens.len(), Ordering::Relaxed);
        tokens
    }

    fn encode_chat(
        &self,
        messages: &[Value],
        options: &ChatOptions,
    ) -> Result<Vec<TokenId>, TemplateError> {
        self.words.encode_chat_if(messages, options, &|least| self.lets_pass(least))
    }

    fn end_tokens(&self) -> &[TokenId] {
        self.words.end_tokens()
    }

    fn vocab_size(&self) -> usize {
        self.words.vocab_size()
    }

    fn piece(&self, token: TokenId) -> &[u8] {
        self.words.piece(token)
    }
}
