//! The status as the event loop keeps it, and its publication.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use shared::ids::Incarnation;

use super::clients::unix_seconds;
use super::service::{Request, Service};
use crate::status::{
    LastFailure, Loading, ModelStatus, Recycles, Requests, ServiceState, Status, StatusCell,
    Tokens, WorkerStatus,
};
use crate::worker::{Intent, Patience, Reason, State, Worker};

/// The counters, and the cell that shows them.
#[derive(Debug)]
pub(super) struct Board {
    cell: Arc<StatusCell>,
    status: Status,
    is_stale: bool,
}

impl Board {
    pub(super) fn new(model_name: String, arch: String) -> Self {
        let status = Status {
            state: ServiceState::Loading,
            since: unix_seconds(),
            cause: None,
            worker: WorkerStatus::default(),
            recycles: Recycles::default(),
            requests: Requests::default(),
            tokens: Tokens::default(),
            model: ModelStatus { name: model_name, arch, ..ModelStatus::default() },
            last_failure: None,
            retry_at: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: 0.0,
        };
        Self { cell: Arc::new(StatusCell::new(status.clone())), status, is_stale: true }
    }

    pub(super) fn cell(&self) -> Arc<StatusCell> {
        Arc::clone(&self.cell)
    }

    /// Something visible changed.
    pub(super) fn touch(&mut self) {
        self.is_stale = true;
    }

    /// What the last failure was, in words.
    pub(super) fn last_cause(&self) -> String {
        self.status.last_failure.as_ref().map_or_else(String::new, |last| last.detail.clone())
    }

    pub(super) fn count_rejected(&mut self) {
        self.status.requests.rejected += 1;
        self.touch();
    }

    pub(super) fn count_accepted(&mut self, prompt_tokens: u64) {
        self.status.requests.total += 1;
        self.status.tokens.prompt_total += prompt_tokens;
        self.touch();
    }

    pub(super) fn count_replayed(&mut self, tokens: u64) {
        self.status.tokens.replayed_total += tokens;
        self.touch();
    }

    /// Not a change worth a publication: readers see the count at once.
    pub(super) fn count_generated(&self, tokens: u64) {
        self.cell.count_generated(tokens);
    }

    pub(super) fn count_over(&mut self, request: &Request) {
        let requests = &mut self.status.requests;
        *match request.worst.0 {
            0 => &mut requests.finished,
            1 => &mut requests.cancelled,
            _ => &mut requests.failed,
        } += 1;
        self.touch();
    }

    /// A process is gone. The farewell of a service that stops is no recycle.
    pub(super) fn count_loss(&mut self, reason: &Reason, life: Incarnation, is_farewell: bool) {
        self.touch();
        if *reason != Reason::Operator {
            self.status.last_failure = Some(LastFailure {
                at: unix_seconds(),
                incarnation: life.0,
                reason: reason.name(),
                detail: reason.to_string(),
            });
        } else if is_farewell {
            return;
        }
        self.status.recycles.total += 1;
        *self.status.recycles.by_reason.entry(reason.name()).or_default() += 1;
    }
}

impl Service {
    /// Shows what changed in this turn.
    pub(super) fn publish(&mut self) {
        if !std::mem::take(&mut self.board.is_stale) {
            return;
        }
        let status = &mut self.board.status;
        let state = service_state(&self.worker);
        if state != status.state {
            status.state = state;
            status.since = unix_seconds();
        }
        let last = || status.last_failure.as_ref().map(|last| last.detail.clone());
        status.cause =
            cause(&self.worker).or_else(|| last().filter(|_| state == ServiceState::Degraded));
        status.retry_at = match self.worker.state {
            State::BackingOff { until, .. } => Some(unix_time(until, self.now.into_std())),
            _ => None,
        };
        status.worker.incarnation = self.worker.incarnation.0;
        self.worker.state.name().clone_into(&mut status.worker.state);
        status.worker.pid = self.life.as_ref().and_then(super::life::Life::pid);
        status.worker.loading = match self.worker.state {
            State::Starting { done_bytes, total_bytes, .. } => {
                Some(Loading { done_bytes, total_bytes })
            }
            _ => None,
        };
        if let Some(ready) = &self.ready {
            status.worker.threads = ready.threads;
            ready.instruction_set.clone_into(&mut status.worker.instruction_set);
            ready.arch.clone_into(&mut status.model.arch);
            status.model.n_ctx = ready.context_len;
            status.model.n_vocab = ready.vocab_size;
            status.model.n_params = ready.parameters;
            status.model.size_bytes = ready.weight_bytes;
        }
        let queued = self.requests.values().filter(|one| one.started.is_none()).count();
        status.requests.queued = queued as u64;
        status.requests.active = (self.requests.len() - queued) as u64;
        let since = self.life.as_ref().and_then(|life| life.pid().map(|_| life.started));
        self.board.cell.publish(self.board.status.clone(), since);
    }
}

fn service_state(worker: &Worker) -> ServiceState {
    let waiting = if worker.budget.is_degraded() {
        ServiceState::Degraded
    } else if !worker.has_served {
        ServiceState::Loading
    } else {
        ServiceState::Recycling
    };
    match (&worker.state, worker.intent) {
        (_, Intent::Stop) => ServiceState::Draining,
        (State::Held { .. }, _) => ServiceState::Held,
        (State::Serving { .. }, _) => ServiceState::Serving,
        (_, Intent::Hold) => ServiceState::Draining,
        (State::Draining { .. }, Intent::Run) => ServiceState::Recycling,
        (State::BackingOff { .. }, _) if waiting != ServiceState::Degraded => {
            ServiceState::BackingOff
        }
        _ => waiting,
    }
}

fn cause(worker: &Worker) -> Option<String> {
    match &worker.state {
        State::Recycling { reason, patience: Patience::Spent, .. } => Some(format!(
            "{reason}; it was killed, but the process does not end (a device or file that does \
             not answer may hold it in the kernel), and no other is started before it does"
        )),
        State::Recycling { reason, .. } => Some(reason.to_string()),
        State::BackingOff { cause, .. } | State::Held { cause, .. } => Some(cause.clone()),
        State::Draining { .. } if worker.intent == Intent::Run => {
            Some(Reason::Operator.to_string())
        }
        _ => None,
    }
}

/// A moment of the monotonic clock as time of day, in seconds since 1970.
fn unix_time(moment: Instant, now: Instant) -> u64 {
    let ahead = moment.saturating_duration_since(now);
    let time = SystemTime::now() + ahead;
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
