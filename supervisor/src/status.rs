//! The one status object, as `GET /status` and `strata-ctl status --json` show it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// What the service is doing, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    /// The first worker is loading; requests are refused with 503 and Retry-After.
    Loading,
    /// A worker computes.
    Serving,
    /// A worker is being replaced; requests are accepted and wait.
    Recycling,
    /// The last start failed; the next is due at `retry_at`. Requests wait as in `recycling`.
    BackingOff,
    /// Too many failures in a row: requests are refused; starts go on at the longest delay.
    Degraded,
    /// No worker is started until the operator says so.
    Held,
    /// The service is stopping.
    Draining,
}

/// The status object. Times of day are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// What the service is doing.
    pub state: ServiceState,
    /// Since when.
    pub since: u64,
    /// Why, where the state needs a reason (`held`, `degraded`, `backing_off`, `recycling`).
    pub cause: Option<String>,
    /// The worker.
    pub worker: WorkerStatus,
    /// Replaced workers.
    pub recycles: Recycles,
    /// Requests (not choices).
    pub requests: Requests,
    /// Tokens.
    pub tokens: Tokens,
    /// The model; known in full once a worker was ready.
    pub model: ModelStatus,
    /// The last worker failure.
    pub last_failure: Option<LastFailure>,
    /// When the next start is due, if one is waited for.
    pub retry_at: Option<u64>,
    /// Version of the supervisor.
    pub version: String,
    /// How long the supervisor has run.
    pub uptime_s: f64,
}

/// The worker's part of the status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its process, while there is one.
    pub pid: Option<u32>,
    /// The number of its life; of the last one while there is none; 0 before the first.
    pub incarnation: u64,
    /// `absent`, `starting`, `serving`, `draining`, `recycling`, `backing_off` or `held`.
    pub state: String,
    /// How long the process has run; 0 while there is none.
    pub uptime_s: f64,
    /// Compute threads; 0 until it was ready.
    pub threads: u32,
    /// Instruction set of its kernels; empty until it was ready.
    pub instruction_set: String,
    /// How far loading is, while it loads.
    pub loading: Option<Loading>,
}

/// Progress of loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loading {
    /// Weight bytes ready for use.
    pub done_bytes: u64,
    /// Weight bytes in all; 0 while unknown.
    pub total_bytes: u64,
}

/// Counters of replaced workers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recycles {
    /// All.
    pub total: u64,
    /// By reason: a signal's name, an exit's name, `hang`, `load_timeout`, `protocol`, `operator`.
    pub by_reason: BTreeMap<String, u64>,
}

/// Counters of requests. All but `active` and `queued` only rise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// With at least one choice in a slot or in replay.
    pub active: u64,
    /// With no choice started yet.
    pub queued: u64,
    /// Accepted, ever.
    pub total: u64,
    /// Ended by the model or a limit.
    pub finished: u64,
    /// With a choice that failed.
    pub failed: u64,
    /// Given up by their client.
    pub cancelled: u64,
    /// Refused before a ticket was given.
    pub rejected: u64,
}

/// Counters of tokens; they only rise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Prompt tokens of accepted choices.
    pub prompt_total: u64,
    /// Tokens appended to logs.
    pub generated_total: u64,
    /// Tokens read again after recycles.
    pub replayed_total: u64,
}

/// The model's part of the status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelStatus {
    /// Name shown by the API.
    pub name: String,
    /// Architecture; empty until a worker was ready, unless the caller knew it.
    pub arch: String,
    /// Context length per sequence, in tokens; 0 until a worker was ready.
    pub n_ctx: u32,
    /// Vocabulary size; 0 until a worker was ready.
    pub n_vocab: u32,
    /// Parameters in all tensors; 0 until a worker was ready.
    pub n_params: u64,
    /// Weight bytes; 0 until a worker was ready.
    pub size_bytes: u64,
}

/// The last worker failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFailure {
    /// When, in seconds since 1970.
    pub at: u64,
    /// The life that failed.
    pub incarnation: u64,
    /// As in `recycles.by_reason`.
    pub reason: String,
    /// The exit, the epitaph or the fault, in words.
    pub detail: String,
}

/// Where the event loop publishes the status and everybody else reads it, without waiting.
#[derive(Debug)]
pub struct StatusCell {
    published: Mutex<Published>,
    /// Counted per token, so not worth a publication each.
    generated: AtomicU64,
    born: Instant,
}

#[derive(Debug)]
struct Published {
    status: Arc<Status>,
    worker_since: Option<Instant>,
}

impl StatusCell {
    /// A cell that shows `status` until the first publication.
    #[must_use]
    pub fn new(status: Status) -> Self {
        let published = Published { status: Arc::new(status), worker_since: None };
        Self {
            published: Mutex::new(published),
            generated: AtomicU64::new(0),
            born: Instant::now(),
        }
    }

    /// Shows `status` from now on. `worker_since` is when the worker's process began.
    pub fn publish(&self, status: Status, worker_since: Option<Instant>) {
        *self.lock() = Published { status: Arc::new(status), worker_since };
    }

    /// Counts emitted tokens.
    pub fn count_generated(&self, tokens: u64) {
        self.generated.fetch_add(tokens, Ordering::Relaxed);
    }

    /// The status now: what was published, with the times and the token count of this moment.
    #[must_use]
    pub fn read(&self) -> Arc<Status> {
        let (mut status, worker_since) = {
            let published = self.lock();
            (Arc::clone(&published.status), published.worker_since)
        };
        let now = Arc::make_mut(&mut status);
        now.uptime_s = self.born.elapsed().as_secs_f64();
        now.worker.uptime_s = worker_since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        now.tokens.generated_total = self.generated.load(Ordering::Relaxed);
        status
    }

    fn lock(&self) -> MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
