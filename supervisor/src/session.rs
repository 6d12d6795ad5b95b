//! A session: one token sequence with its sampling settings, from submission to its end.
//!
//! The first half is a pure state machine; [`Session`] puts the data beside it. What a session
//! does is decided by the event loop, which is its only owner.

pub mod log;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use shared::ids::{Incarnation, Position, RequestId, SessionId, TokenId};
use shared::protocol::{EndReason, Sampled, Sampling, Submit};
use tokio::time::Instant;

use log::{Failure, LogWriter, Outcome, Phase};

/// Where a session is.
///
/// ```text
///            Submitted (first)               Tokens
///   Queued ────────────────────► Prefilling ────────► Decoding ◄──┐ Tokens
///     ▲  │                            │                 │  │ └────┘
///     │  └─ Submitted (again) ► Replaying ── Tokens ────┘  │
///     │                               │                    │
///     └────── WorkerLost ─────────────┴────────────────────┤
///                                                          │ LogEnded
///   Queued ── LogEnded ──► Ended ◄── WorkerEnded, ── Ending ◄── (also from Prefilling
///                                    WorkerLost                    and Replaying)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waits for a slot: for the first time, or again after its worker was lost.
    Queued,
    /// The worker reads the prompt.
    Prefilling {
        /// The next position it will compute.
        next: Position,
    },
    /// The worker reads prompt and emitted tokens again.
    Replaying {
        /// The next position it will compute.
        next: Position,
    },
    /// The worker emits tokens.
    Decoding,
    /// The log is ended; the worker still holds the slot.
    Ending,
    /// Nothing refers to it any more.
    Ended,
}

/// What happened to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It was sent to a worker.
    Submitted {
        /// Not for the first time.
        again: bool,
    },
    /// The worker read on.
    Progressed(Position),
    /// The worker emitted tokens.
    TokensArrived,
    /// Its log was ended, by what was emitted, by its reader's leaving, or by a failure.
    LogEnded,
    /// The worker says that it is over and its slot free.
    WorkerEnded,
    /// The worker that had it is gone.
    WorkerLost,
}

/// An event that cannot happen in a state; from a worker, a breach of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} does not fit a session that is {state:?}")]
pub struct Misfit {
    /// The state.
    pub state: State,
    /// The event.
    pub event: Event,
}

/// The transition function.
///
/// # Errors
///
/// [`Misfit`] if the event cannot happen in that state.
pub fn step(state: State, event: Event) -> Result<State, Misfit> {
    use Event as E;
    use State as S;
    Ok(match (state, event) {
        (S::Queued, E::Submitted { again: false }) => S::Prefilling { next: Position(0) },
        (S::Queued, E::Submitted { again: true }) => S::Replaying { next: Position(0) },
        (S::Queued, E::LogEnded) => S::Ended,
        (S::Queued, E::WorkerLost) => S::Queued,

        (S::Prefilling { .. }, E::Progressed(next)) => S::Prefilling { next },
        (S::Replaying { .. }, E::Progressed(next)) => S::Replaying { next },
        (S::Decoding, E::Progressed(_)) => S::Decoding,
        (S::Ending, E::Progressed(_)) => S::Ending,

        (S::Prefilling { .. } | S::Replaying { .. } | S::Decoding, E::TokensArrived) => S::Decoding,
        // The worker may have run ahead of the end; what it emitted there is dropped.
        (S::Ending, E::TokensArrived) => S::Ending,

        (S::Prefilling { .. } | S::Replaying { .. } | S::Decoding, E::LogEnded) => S::Ending,
        (S::Prefilling { .. } | S::Replaying { .. } | S::Decoding, E::WorkerLost) => S::Queued,
        (S::Ending, E::WorkerEnded | E::WorkerLost) => S::Ended,

        (S::Queued, E::Progressed(_) | E::TokensArrived | E::WorkerEnded)
        | (
            S::Prefilling { .. } | S::Replaying { .. } | S::Decoding,
            E::Submitted { .. } | E::WorkerEnded,
        )
        | (S::Ending, E::Submitted { .. } | E::LogEnded)
        | (S::Ended, _) => return Err(Misfit { state, event }),
    })
}

/// What tokens from the worker did to a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// How many were appended; the rest ran ahead of the end.
    pub count: usize,
    /// The end, if they brought it.
    pub outcome: Option<Outcome>,
}

/// One choice of one request.
#[derive(Debug)]
pub struct Session {
    /// Its number.
    pub id: SessionId,
    /// The request it belongs to.
    pub request: RequestId,
    /// Where it is.
    pub state: State,
    /// Submissions to a worker so far.
    pub attempts: u32,
    /// Worker deaths in a row that it may have caused: it was active, and had no new token.
    pub strikes: u32,
    /// The last worker life that had it.
    pub incarnation: Incarnation,
    /// When it was last submitted, for estimates.
    pub submitted: Option<Instant>,
    /// Whether an acknowledgement is owed.
    pub owes_ack: bool,
    prompt: Arc<[TokenId]>,
    emitted: Vec<TokenId>,
    length_max: Position,
    end_tokens: Arc<[TokenId]>,
    sampling: Sampling,
    log: LogWriter,
    has_new_token: bool,
}

/// What a session is made of.
#[derive(Debug)]
pub struct NewSession {
    /// Its number.
    pub id: SessionId,
    /// The request it belongs to.
    pub request: RequestId,
    /// The prompt.
    pub prompt: Arc<[TokenId]>,
    /// Tokens it may have in all.
    pub length_max: Position,
    /// Tokens that end it.
    pub end_tokens: Arc<[TokenId]>,
    /// How to draw.
    pub sampling: Sampling,
    /// Its log.
    pub log: LogWriter,
}

impl Session {
    /// A session that waits.
    #[must_use]
    pub fn new(new: NewSession) -> Self {
        Self {
            id: new.id,
            request: new.request,
            state: State::Queued,
            attempts: 0,
            strikes: 0,
            incarnation: Incarnation(0),
            submitted: None,
            owes_ack: false,
            prompt: new.prompt,
            emitted: Vec::new(),
            length_max: new.length_max,
            end_tokens: new.end_tokens,
            sampling: new.sampling,
            log: new.log,
            has_new_token: false,
        }
    }

    /// Tokens of the prompt.
    #[must_use]
    pub fn prompt_len(&self) -> usize {
        self.prompt.len()
    }

    /// Tokens emitted so far.
    #[must_use]
    pub fn emitted_len(&self) -> usize {
        self.emitted.len()
    }

    /// The position of the next token: how many there are, prompt and emitted.
    #[must_use]
    pub fn length(&self) -> Position {
        Position(0).plus(self.prompt.len() + self.emitted.len())
    }

    /// Whether it occupies a slot in the worker.
    #[must_use]
    pub fn is_in_worker(&self) -> bool {
        match self.state {
            State::Prefilling { .. }
            | State::Replaying { .. }
            | State::Decoding
            | State::Ending => true,
            State::Queued | State::Ended => false,
        }
    }

    /// Whether its log is open.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.log.is_over()
    }

    /// What it is doing, as the API names it.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.state {
            State::Queued if self.attempts == 0 => Phase::Queued,
            State::Queued | State::Replaying { .. } => Phase::Replay,
            State::Prefilling { .. } => Phase::Prefill,
            State::Decoding | State::Ending | State::Ended => Phase::Decode,
        }
    }

    /// Hands it to a worker life.
    ///
    /// # Panics
    ///
    /// If it does not wait.
    pub fn submit(&mut self, incarnation: Incarnation, now: Instant) -> Submit {
        self.state = step(self.state, Event::Submitted { again: self.attempts > 0 })
            .expect("only waiting sessions are planned");
        self.attempts += 1;
        self.incarnation = incarnation;
        self.submitted = Some(now);
        self.has_new_token = false;
        self.owes_ack = false;
        let tokens = self.prompt.iter().chain(&self.emitted).copied().collect();
        Submit {
            session: self.id,
            tokens,
            prompt_len: Position(0).plus(self.prompt.len()).0,
            length_max: self.length_max,
            end_tokens: self.end_tokens.to_vec(),
            sampling: self.sampling.clone(),
        }
    }

    /// The worker read on.
    ///
    /// # Errors
    ///
    /// What is wrong with the message.
    pub fn progressed(&mut self, position: Position) -> Result<(), String> {
        if position > self.length() && self.state != State::Ending {
            return Err(format!("progress at {position} in a sequence of {}", self.length()));
        }
        self.state = step(self.state, Event::Progressed(position)).map_err(|e| e.to_string())?;
        Ok(())
    }

    /// Appends tokens to the log, up to the end they may bring.
    ///
    /// # Errors
    ///
    /// What is wrong with the message; nothing of it was appended.
    pub fn tokens_arrived(
        &mut self,
        position: Position,
        tokens: Vec<Sampled>,
        vocab_size: u32,
    ) -> Result<Appended, String> {
        let state = step(self.state, Event::TokensArrived).map_err(|e| e.to_string())?;
        if tokens.is_empty() {
            return Err("a message of no tokens".to_owned());
        }
        let mut appended = Appended { count: 0, outcome: None };
        if state == State::Ending {
            return Ok(appended);
        }
        if position != self.length() {
            return Err(format!("tokens at position {position}; the next is {}", self.length()));
        }
        if let Some(bad) = tokens.iter().find(|sampled| sampled.token.0 >= vocab_size) {
            return Err(format!("token {} of a vocabulary of {vocab_size}", bad.token));
        }
        self.state = state;
        self.strikes = 0;
        self.has_new_token = true;
        self.owes_ack = true;
        for sampled in tokens {
            appended.count += 1;
            appended.outcome = self.append(sampled);
            if appended.outcome.is_some() {
                self.end_state();
                break;
            }
        }
        Ok(appended)
    }

    fn append(&mut self, sampled: Sampled) -> Option<Outcome> {
        let position = self.length();
        self.emitted.push(sampled.token);
        if self.end_tokens.contains(&sampled.token) {
            self.log.append_end_token(position, sampled);
            return Some(Outcome::Stop);
        }
        let hit = self.log.append(position, sampled);
        if hit.is_some() {
            return hit;
        }
        if self.length() < self.length_max {
            return None;
        }
        self.log.end(Outcome::Length);
        Some(Outcome::Length)
    }

    /// The worker says that the session is over. A refusal ends it with a failure.
    ///
    /// # Errors
    ///
    /// What is wrong with the message.
    pub fn worker_ended(&mut self, reason: EndReason) -> Result<Option<Outcome>, String> {
        let mut outcome = None;
        if self.is_live() {
            let EndReason::Refused(why) = reason else {
                return Err(format!("session {} was ended too early ({reason:?})", self.id));
            };
            let failure = Failure {
                message: format!("the worker refused the request: {why}"),
                ..self.failure("refused", false)
            };
            outcome = Some(self.end(Outcome::Failed(failure)));
        }
        self.state = step(self.state, Event::WorkerEnded).map_err(|e| e.to_string())?;
        Ok(outcome)
    }

    /// Ends the log from our side. Returns the outcome for convenience.
    ///
    /// # Panics
    ///
    /// If it is ended already.
    pub fn end(&mut self, outcome: Outcome) -> Outcome {
        assert!(self.is_live(), "session {} is ended twice", self.id);
        self.log.end(outcome.clone());
        self.end_state();
        outcome
    }

    fn end_state(&mut self) {
        self.state = step(self.state, Event::LogEnded).expect("an open log can end in any state");
        self.owes_ack = false;
    }

    /// Its worker is gone. `is_blamed` says whether it may have been the cause.
    pub fn worker_lost(&mut self, is_blamed: bool) {
        if self.is_live() && self.is_in_worker() && is_blamed && !self.has_new_token {
            self.strikes += 1;
        }
        self.state = step(self.state, Event::WorkerLost).expect("only owned sessions are lost");
        self.owes_ack = false;
    }

    /// A failure of this session as it stands; the message is for the caller to fill in.
    #[must_use]
    pub fn failure(&self, kind: &'static str, retryable: bool) -> Failure {
        Failure {
            kind,
            message: String::new(),
            deterministic: false,
            position: None,
            phase: self.phase(),
            attempts: self.attempts,
            incarnation: self.incarnation,
            retryable,
        }
    }

    /// The position that is being computed, as far as is known.
    #[must_use]
    pub fn position(&self) -> Position {
        match self.state {
            State::Prefilling { next } | State::Replaying { next } => next,
            _ => self.length(),
        }
    }
}
