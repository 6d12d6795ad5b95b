//! Requests, readers that leave, operators' orders.

use std::time::{Duration, SystemTime};

use shared::ids::{Position, RequestId, SessionId};
use shared::protocol::{Sampling, ToWorker};

use super::service::{Request, Service};
use super::{Control, ControlReply, NewRequest, Rejection, Ticket};
use crate::session::log::{self, Failure, LogReader, Outcome};
use crate::session::{NewSession, Session};
use crate::worker::{self, Intent, State};

/// Bounds of `Retry-After`, in seconds.
const RETRY_AFTER_MAX: f64 = 60.0;

impl Service {
    /// Accepts a request, or says why not.
    pub(super) fn admit(&mut self, request: NewRequest) -> Result<Ticket, Rejection> {
        let checked = self.check_open().and_then(|()| self.check_room(&request));
        if let Err(rejection) = checked {
            self.board.count_rejected();
            return Err(rejection);
        }
        let id = self.next_request;
        self.next_request = id.next();
        self.requests.insert(id, new_request(&request, self.now));
        let prompt_total: usize = request.prompts.iter().map(|prompt| prompt.len()).sum();
        self.board.count_accepted((prompt_total * request.choices.len()) as u64);
        let readers = self.make_sessions(id, request);
        self.is_plan_stale = true;
        Ok(Ticket { request: id, created: unix_seconds(), readers })
    }

    fn make_sessions(&mut self, id: RequestId, request: NewRequest) -> Vec<LogReader> {
        let none = Vec::new();
        let end_tokens = if request.end_tokens { self.end_tokens.clone() } else { none.into() };
        let mut readers = Vec::with_capacity(request.prompts.len() * request.choices.len());
        let mut passed = 0;
        for prompt in request.prompts {
            let length_max = self.length_max(prompt.len(), request.max_tokens);
            for sampling in &request.choices {
                let session = self.next_session;
                self.next_session = session.next();
                let text = self.vocabulary.clone().detokenizer();
                let (log, reader) =
                    log::new(session, text, &request.stops, self.channels.gone.clone());
                readers.push(reader);
                let choice = sampling.choice.wrapping_add(passed);
                let new = NewSession {
                    id: session,
                    request: id,
                    prompt: prompt.clone(),
                    length_max,
                    end_tokens: end_tokens.clone(),
                    sampling: Sampling { choice, ..sampling.clone() },
                    log,
                };
                self.sessions.insert(session, Session::new(new));
                if length_max <= Position(0).plus(prompt.len()) {
                    self.end_session(session, Outcome::Length);
                }
            }
            passed = passed.wrapping_add(u32::try_from(request.choices.len()).unwrap_or(u32::MAX));
        }
        readers
    }

    /// Tokens a session may have in all.
    fn length_max(&self, prompt_len: usize, max_tokens: Option<u32>) -> Position {
        let context = self.ready.as_ref().map_or(0, |ready| ready.context_len);
        let prompt_len = Position(0).plus(prompt_len).0;
        Position(max_tokens.map_or(context, |max| prompt_len.saturating_add(max).min(context)))
    }

    /// Whether the service takes requests at all.
    fn check_open(&self) -> Result<(), Rejection> {
        let worker = &self.worker;
        match (&worker.state, worker.intent) {
            (_, Intent::Stop) => return Err(Rejection::Draining),
            (State::Held { cause, .. }, _) => {
                return Err(Rejection::Held { cause: cause.clone() });
            }
            (_, Intent::Hold) => {
                return Err(Rejection::Held { cause: "held by the operator".to_owned() });
            }
            (State::Serving { .. } | State::Draining { .. }, Intent::Run) => return Ok(()),
            _ => {}
        }
        if worker.budget.is_degraded() {
            let cause = self.board.last_cause();
            return Err(Rejection::Degraded { cause, retry_after_s: self.retry_after_start() });
        }
        if worker.has_served {
            return Ok(());
        }
        let (done_bytes, total_bytes) = match worker.state {
            State::Starting { done_bytes, total_bytes, .. } => (done_bytes, total_bytes),
            _ => (0, 0),
        };
        let retry_after_s = self.retry_after_start();
        Err(Rejection::Loading { retry_after_s, done_bytes, total_bytes })
    }

    /// Whether each prompt of this request fits the context, and the request the queue.
    fn check_room(&self, request: &NewRequest) -> Result<(), Rejection> {
        let n_ctx = self.ready.as_ref().map_or(0, |ready| ready.context_len);
        let longest = request.prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
        let n_prompt = u32::try_from(longest).unwrap_or(u32::MAX);
        if n_prompt >= n_ctx {
            return Err(Rejection::TooLong { n_prompt, n_ctx });
        }
        let limit = self.config.queue_limit;
        let waiting = self.requests.values().filter(|one| one.started.is_none()).count();
        let is_idle = waiting == 0
            && self.worker.takes_sessions()
            && self.sessions.len() < self.config.slots as usize;
        if waiting < limit as usize || is_idle {
            return Ok(());
        }
        let ahead = self.sessions.len() as f64 / f64::from(self.config.slots);
        let seconds = self.mean_session.as_secs_f64() * ahead;
        Err(Rejection::QueueFull { limit, retry_after_s: retry_after(seconds) })
    }

    /// When a start that is under way or waited for may have ended, in seconds from now.
    fn retry_after_start(&self) -> u32 {
        match self.worker.state {
            State::BackingOff { until, .. } => {
                let wait = until.saturating_duration_since(self.now.into_std());
                retry_after((wait + Duration::from_secs(1)).as_secs_f64())
            }
            State::Starting { since, done_bytes, total_bytes, .. } if done_bytes > 0 => {
                let passed = self.now.into_std().duration_since(since).as_secs_f64();
                let left = total_bytes.saturating_sub(done_bytes) as f64;
                retry_after(passed * left / done_bytes as f64 + 1.0)
            }
            _ => 2,
        }
    }

    /// A reader is gone before its log's end.
    pub(super) fn cancel(&mut self, id: SessionId) {
        if self.sessions.get(&id).is_some_and(Session::is_live) {
            self.end_session(id, Outcome::Cancelled);
        }
    }

    /// Ends a session from our side, in the worker too.
    pub(super) fn end_session(&mut self, id: SessionId, outcome: Outcome) {
        let session = self.sessions.get_mut(&id).expect("called with a live session");
        let outcome = session.end(outcome);
        if session.is_in_worker() {
            self.tell_end(id);
        }
        self.choice_over(id, &outcome);
    }

    /// Tells the worker to end a session where its log ends.
    pub(super) fn tell_end(&mut self, id: SessionId) {
        let keep = self.sessions[&id].length();
        let now = self.now.into_std();
        let Some(life) = &mut self.life else { return };
        // Its end is owed from now on.
        life.shares.owe(id, now);
        self.send(ToWorker::End { session: id, keep });
    }

    /// Ends every live session with a failure.
    pub(super) fn fail_all(&mut self, kind: &'static str, message: &str) {
        let live = |(id, one): (&SessionId, &Session)| one.is_live().then_some(*id);
        let ids: Vec<SessionId> = self.sessions.iter().filter_map(live).collect();
        for id in ids {
            // While the worker is held, the same request would be refused.
            let failure = self.sessions[&id].failure(kind, kind != "held");
            let failure = Failure { message: message.to_owned(), ..failure };
            self.end_session(id, Outcome::Failed(failure));
        }
    }

    pub(super) fn on_control(&mut self, command: Control) -> Result<ControlReply, String> {
        let incarnation = self.life.as_ref().map(|life| life.incarnation);
        let event = match command {
            Control::Recycle { now } => worker::Event::Recycle { now },
            Control::Hold => worker::Event::Hold,
            Control::Release => worker::Event::Release,
        };
        let answer = self.step(event).expect("every order is answered");
        self.board.touch();
        tracing::info!(strata_order = ?command, strata_answer = ?answer, "operator's order");
        answer.map(|message| ControlReply { message: message.to_owned(), incarnation })
    }

    pub(super) fn on_stop(&mut self, at_once: bool) {
        tracing::info!(strata_at_once = at_once, strata_requests = self.requests.len(), "stopping");
        self.board.touch();
        let drain = Duration::from_secs_f64(self.config.drain_timeout_s);
        self.step(if at_once {
            worker::Event::StopNow
        } else {
            worker::Event::Stop { deadline: (self.now + drain).into_std() }
        });
    }
}

fn new_request(request: &NewRequest, now: tokio::time::Instant) -> Request {
    Request {
        label: request.label.clone(),
        choices: request.prompts.len() * request.choices.len(),
        open: request.prompts.len() * request.choices.len(),
        prompt_len: request.prompts.iter().map(|prompt| prompt.len()).sum(),
        generated: 0,
        attempts: 0,
        first_incarnation: 0,
        last_incarnation: 0,
        created: now,
        started: None,
        first_token: None,
        worst: (0, ""),
    }
}

/// Whole seconds within bounds.
fn retry_after(seconds: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let whole = seconds.clamp(1.0, RETRY_AFTER_MAX).ceil() as u32;
    whole
}

/// The time of day, in seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
