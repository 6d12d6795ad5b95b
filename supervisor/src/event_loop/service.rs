//! The state of the service, and the turn of the loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shared::config::Config;
use shared::ids::{Position, RequestId, SessionId, TokenId};
use shared::protocol::{Ready, ToWorker};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::life::Life;
use super::publish::Board;
use super::{CoreOptions, Event, Vocabulary};
use crate::replay::{self, Candidate};
use crate::session::log::Outcome;
use crate::session::{Session, State};
use crate::status::StatusCell;
use crate::worker::process::{Launch, Reports};
use crate::worker::{self, Action, Worker};

/// Longest sleep of the loop when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// An idle worker is asked for a sign of life this often, or twice per progress deadline.
const PING_EVERY_MAX: Duration = Duration::from_secs(10);

/// The sending ends of the loop's own queues, to be given to others.
#[derive(Debug)]
pub(super) struct Channels {
    pub(super) events: mpsc::Sender<Event>,
    pub(super) reports: Reports,
    pub(super) gone: mpsc::UnboundedSender<SessionId>,
}

/// A request whose choices are not all over.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) label: String,
    pub(super) choices: usize,
    /// Choices whose log is open.
    pub(super) open: usize,
    pub(super) prompt_len: usize,
    pub(super) generated: usize,
    pub(super) attempts: u32,
    pub(super) first_incarnation: u64,
    pub(super) last_incarnation: u64,
    pub(super) created: Instant,
    pub(super) started: Option<Instant>,
    pub(super) first_token: Option<Instant>,
    /// The worst outcome of its choices so far, and its name.
    pub(super) worst: (u8, &'static str),
}

/// Everything the event loop owns.
pub(super) struct Service {
    pub(super) config: Config,
    pub(super) header_digest: [u8; 32],
    pub(super) vocabulary: Arc<dyn Vocabulary>,
    pub(super) end_tokens: Arc<[TokenId]>,
    pub(super) launcher: Box<dyn Launch>,
    pub(super) channels: Channels,
    pub(super) worker: Worker,
    pub(super) life: Option<Life>,
    pub(super) ready: Option<Box<Ready>>,
    /// In the order they came. Those that are over stay until the worker frees their slot.
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) requests: BTreeMap<RequestId, Request>,
    pub(super) next_request: RequestId,
    pub(super) next_session: SessionId,
    /// How long a session takes, for `Retry-After`: a running mean.
    pub(super) mean_session: Duration,
    pub(super) board: Board,
    /// The time of this turn.
    pub(super) now: Instant,
    /// Sessions that got tokens in this turn.
    pub(super) acks: Vec<SessionId>,
    /// Sessions or slots came or went, so the plan is to be made anew.
    pub(super) is_plan_stale: bool,
    /// Sessions that occupy a slot; true unless the plan is stale.
    pub(super) owned: usize,
    progress_deadline: Duration,
    ping_every: Duration,
}

impl Service {
    pub(super) fn new(options: CoreOptions, launcher: Box<dyn Launch>, channels: Channels) -> Self {
        let CoreOptions { config, vocabulary, model_name, arch, header_digest } = options;
        let progress_deadline = Duration::from_secs_f64(config.progress_deadline_s);
        Self {
            worker: Worker::new(&config),
            header_digest,
            end_tokens: vocabulary.end_tokens().into(),
            vocabulary,
            launcher,
            channels,
            life: None,
            ready: None,
            sessions: BTreeMap::new(),
            requests: BTreeMap::new(),
            next_request: RequestId(1),
            next_session: SessionId(1),
            mean_session: Duration::from_secs(2),
            board: Board::new(model_name, arch),
            now: Instant::now(),
            acks: Vec::new(),
            is_plan_stale: false,
            owned: 0,
            progress_deadline,
            ping_every: (progress_deadline / 2).min(PING_EVERY_MAX),
            config,
        }
    }

    pub(super) fn status_cell(&self) -> Arc<StatusCell> {
        self.board.cell()
    }

    /// The first turn.
    pub(super) fn begin(&mut self) {
        self.set_now();
        self.step(worker::Event::Begin);
        self.settle();
    }

    pub(super) fn set_now(&mut self) {
        self.now = Instant::now();
    }

    /// Whether the service has stopped.
    pub(super) fn is_over(&self) -> bool {
        self.worker.intent == worker::Intent::Stop
            && self.worker.state == worker::State::Absent
            && self.life.is_none()
    }

    pub(super) fn on_event(&mut self, event: Event) {
        match event {
            Event::Submit { request, reply } => {
                let answer = self.admit(request);
                // A client that went away drops the ticket, whose readers then cancel.
                reply.send(answer).ok();
            }
            Event::Control { command, reply } => {
                let answer = self.on_control(command);
                reply.send(answer).ok();
            }
            Event::ReaderGone(session) => self.cancel(session),
            Event::Link { incarnation, incoming } => self.on_link(incarnation, incoming),
            Event::Process { incarnation, report } => self.on_report(incarnation, report),
            Event::Stop { at_once } => self.on_stop(at_once),
        }
    }

    /// Asks the worker's state machine, and does what it says. The last answer to an operator, if
    /// there was one, is returned.
    pub(super) fn step(&mut self, event: worker::Event) -> Option<Result<&'static str, String>> {
        let before = self.worker.state.name();
        self.worker.live = self.sessions.values().filter(|one| one.is_live()).count();
        let actions = self.worker.step(event, self.now.into_std());
        if self.worker.state.name() != before {
            self.state_changed(before);
        }
        let mut answer = None;
        for action in actions {
            match action {
                Action::Spawn(incarnation) => self.spawn(incarnation),
                Action::Leave => self.leave(),
                Action::Kill => self.kill(),
                Action::ReportUnreaped => self.report_unreaped(),
                Action::FailAll { kind, message } => self.fail_all(kind, &message),
                Action::Accept(message) => answer = Some(Ok(message)),
                Action::Refuse(message) => answer = Some(Err(message.to_owned())),
            }
        }
        answer
    }

    fn state_changed(&mut self, before: &'static str) {
        self.is_plan_stale = true;
        self.board.touch();
        let cause = match &self.worker.state {
            worker::State::Recycling { reason, .. } => reason.to_string(),
            worker::State::BackingOff { cause, .. } | worker::State::Held { cause, .. } => {
                cause.clone()
            }
            _ => String::new(),
        };
        tracing::info!(
            strata_state = self.worker.state.name(),
            strata_state_before = before,
            strata_incarnation = self.worker.incarnation.0,
            strata_cause = cause,
            "worker state"
        );
    }

    /// The end of a turn: time, plan, acknowledgements, status.
    pub(super) fn settle(&mut self) {
        if self.is_plan_stale {
            self.owned = self.sessions.values().filter(|one| one.is_in_worker()).count();
        }
        if !matches!(self.worker.state, worker::State::Serving { .. }) {
            self.step(worker::Event::Tick { owned: self.owned });
        }
        self.check_end();
        self.check_progress();
        if self.is_plan_stale {
            self.submit_planned();
        }
        self.send_acks();
        self.ping_if_idle();
        self.publish();
    }

    /// When to wake if nothing happens.
    pub(super) fn next_wake(&self) -> Instant {
        let life = self.life.as_ref();
        let ping = life.filter(|life| self.pings(life)).map(|life| life.ping_due);
        [
            self.worker.next_wake().map(Instant::from_std),
            life.and_then(|life| life.watch.due()).map(Instant::from_std),
            life.and_then(|life| life.shares.due()).map(Instant::from_std),
            life.and_then(|life| life.end_due),
            ping,
        ]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or_else(|| Instant::now() + IDLE)
    }

    fn check_progress(&mut self) {
        let is_owing = self.owned > 0;
        let now = self.now.into_std();
        let Some(life) = &mut self.life else { return };
        let is_leaving = matches!(self.worker.state, worker::State::Recycling { .. });
        life.watch.set_owing(!is_leaving && (is_owing || life.ping.is_some()), now);
        let forgotten = life.shares.forgotten(now).filter(|_| !is_leaving);
        if let Some(session) = forgotten {
            let session = session.0;
            tracing::warn!(strata_session = session, "the worker forgot a session");
        }
        if life.watch.is_hung(now) || forgotten.is_some() {
            self.hangs();
        }
    }

    /// Hands waiting sessions to the worker, as many as it has slots for.
    fn submit_planned(&mut self) {
        self.is_plan_stale = false;
        let Some(life) = self.life.as_mut().filter(|_| self.worker.takes_sessions()) else {
            return;
        };
        let candidate = |one: &Session| Candidate {
            session: one.id,
            attempts: one.attempts,
            strikes: one.strikes,
        };
        let queued = |one: &&Session| one.state == State::Queued;
        let waiting: Vec<_> = self.sessions.values().filter(queued).map(candidate).collect();
        let owned = |one: &&Session| one.is_in_worker();
        let running: Vec<_> = self.sessions.values().filter(owned).map(candidate).collect();
        let planned = replay::plan(&waiting, &running, self.config.slots as usize);
        self.owned = running.len() + planned.len();
        life.watch.set_owing(self.owned > 0 || life.ping.is_some(), self.now.into_std());
        let incarnation = life.incarnation;
        for id in planned {
            let session = self.sessions.get_mut(&id).expect("planned from this very map");
            let submit = session.submit(incarnation, self.now);
            let request = self.requests.get_mut(&session.request).expect("its log is open");
            request.submitted(session, self.now);
            if session.attempts > 1 {
                self.board.count_replayed(submit.tokens.len() as u64);
            }
            self.send(ToWorker::Submit(Box::new(submit)));
            self.board.touch();
        }
    }

    fn send_acks(&mut self) {
        for id in std::mem::take(&mut self.acks) {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            if std::mem::take(&mut session.owes_ack) {
                let position = Position(session.length().0 - 1);
                self.send(ToWorker::Ack { session: id, position });
            }
        }
    }

    /// Whether this life is to be asked for a sign when its time comes.
    fn pings(&self, life: &Life) -> bool {
        let is_serving = matches!(self.worker.state, worker::State::Serving { .. });
        is_serving && self.owned == 0 && life.ping.is_none()
    }

    fn ping_if_idle(&mut self) {
        let Some(life) = self.life.as_ref().filter(|life| self.pings(life)) else { return };
        if self.now < life.ping_due {
            return;
        }
        let life = self.life.as_mut().expect("looked at above");
        life.pings += 1;
        life.ping = Some(life.pings);
        life.ping_due = self.now + self.ping_every;
        life.watch.set_owing(true, self.now.into_std());
        let ping = ToWorker::Ping(life.pings);
        self.send(ping);
    }

    /// A choice is over: its request may be, too.
    pub(super) fn choice_over(&mut self, id: SessionId, outcome: &Outcome) {
        self.is_plan_stale = true;
        self.board.touch();
        let session = &self.sessions[&id];
        let request = session.request;
        if let Some(submitted) = session.submitted {
            let took = self.now.duration_since(submitted);
            self.mean_session = (self.mean_session * 7 + took) / 8;
        }
        if session.state == State::Ended {
            self.sessions.remove(&id);
        }
        let entry = self.requests.get_mut(&request).expect("its log was open");
        entry.choice_over(outcome);
        if entry.open == 0 {
            let entry = self.requests.remove(&request).expect("found above");
            self.board.count_over(&entry);
            entry.journal(request, self.now);
        }
    }

    pub(super) fn progress_deadline(&self) -> Duration {
        self.progress_deadline
    }
}

impl Request {
    fn submitted(&mut self, session: &Session, now: Instant) {
        self.started.get_or_insert(now);
        self.attempts = self.attempts.max(session.attempts);
        if self.first_incarnation == 0 {
            self.first_incarnation = session.incarnation.0;
        }
        self.last_incarnation = session.incarnation.0;
    }

    fn choice_over(&mut self, outcome: &Outcome) {
        self.open -= 1;
        let rank = match outcome {
            Outcome::Stop | Outcome::StopString(_) | Outcome::Length => 0,
            Outcome::Cancelled => 1,
            Outcome::Failed(_) => 2,
        };
        if self.worst.1.is_empty() || rank > self.worst.0 {
            let name = match outcome {
                Outcome::Failed(failure) => failure.kind,
                _ => outcome.name(),
            };
            self.worst = (rank, name);
        }
    }

    /// The one event of a request.
    fn journal(&self, id: RequestId, now: Instant) {
        let since = |from: Option<Instant>, to: Option<Instant>| {
            let (Some(from), Some(to)) = (from, to) else { return 0.0 };
            to.duration_since(from).as_secs_f64() * 1e3
        };
        tracing::info!(
            strata_request = id.0,
            strata_label = self.label,
            strata_outcome = self.worst.1,
            strata_choices = self.choices,
            strata_prompt_tokens = self.prompt_len,
            strata_generated_tokens = self.generated,
            strata_incarnation_first = self.first_incarnation,
            strata_incarnation_last = self.last_incarnation,
            strata_replays = self.attempts.saturating_sub(1),
            strata_queued_ms = since(Some(self.created), self.started),
            strata_first_token_ms = since(Some(self.created), self.first_token),
            strata_total_ms = since(Some(self.created), Some(now)),
            "request over"
        );
    }
}
