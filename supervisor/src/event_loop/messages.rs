//! What the worker says: checked, then acted on.

use shared::fault::NonFinite;
use shared::ids::{Incarnation, Position, SessionId};
use shared::protocol::{EndReason, FromWorker, Ready, Sampled};

use super::service::Service;
use crate::session::log::Outcome;
use crate::session::{Session, State};
use crate::worker::link::Incoming;
use crate::worker::{self, Reason};

impl Service {
    /// A link brought something. What an earlier life's link still brings is dropped.
    pub(super) fn on_link(&mut self, incarnation: Incarnation, incoming: Incoming) {
        let Some(life) = self.life.as_mut().filter(|life| life.incarnation == incarnation) else {
            return;
        };
        match incoming {
            Incoming::Message(message) => {
                // A life that is ending is not listened to: what it could still compute, the
                // next one computes too.
                if matches!(self.worker.state, worker::State::Recycling { .. }) {
                    return;
                }
                let checked = if message.incarnation == incarnation {
                    self.on_message(message.body)
                } else {
                    Err(format!("a message of incarnation {}", message.incarnation))
                };
                if let Err(what) = checked {
                    self.step(worker::Event::Faulted(Reason::Protocol(what)));
                }
            }
            Incoming::Closed(how) => {
                tracing::debug!(strata_incarnation = incarnation.0, how, "link closed");
                life.is_link_closed = true;
                self.await_end();
            }
            Incoming::Garbled(what) => {
                life.is_link_closed = true;
                self.step(worker::Event::Faulted(Reason::Protocol(what)));
                self.await_end();
            }
            Incoming::Stuck => self.hangs(),
        }
    }

    /// # Errors
    ///
    /// How the message breaks the protocol.
    fn on_message(&mut self, message: FromWorker) -> Result<(), String> {
        match message {
            FromWorker::Loading { done_bytes, total_bytes } => {
                self.board.touch();
                self.step(worker::Event::Loading { done_bytes, total_bytes });
                Ok(())
            }
            FromWorker::Ready(ready) => self.on_ready(ready),
            FromWorker::Progress { session, position } => {
                let entry = self.session(session)?;
                let before = entry.position();
                entry.progressed(position)?;
                let has_advanced = entry.position() > before;
                if let Some(life) = self.life.as_mut().filter(|_| has_advanced) {
                    life.shares.stepped();
                }
                self.made_progress();
                Ok(())
            }
            FromWorker::Tokens { session, position, tokens } => {
                self.on_tokens(session, position, tokens)
            }
            FromWorker::Ended { session, length: _, reason } => self.on_ended(session, reason),
            FromWorker::Pong(number) => self.on_pong(number),
            FromWorker::NonFinite(report) => self.on_nonfinite(report),
        }
    }

    /// # Errors
    ///
    /// That the worker has no such session. One that was ended is unknown from then on.
    fn session(&mut self, id: SessionId) -> Result<&mut Session, String> {
        self.sessions
            .get_mut(&id)
            .filter(|session| session.is_in_worker())
            .ok_or_else(|| format!("a message about session {id}, which it does not have"))
    }

    fn made_progress(&mut self) {
        let now = self.now.into_std();
        if let Some(life) = &mut self.life {
            life.watch.progressed(now);
        }
    }

    fn on_ready(&mut self, ready: Box<Ready>) -> Result<(), String> {
        if ready.context_len == 0 || ready.vocab_size == 0 {
            return Err("`Ready` without a context or a vocabulary".to_owned());
        }
        if self.ready.as_ref().is_some_and(|known| known.fingerprint != ready.fingerprint) {
            self.step(worker::Event::Faulted(Reason::OtherWeights));
            return Ok(());
        }
        let took = self.life.as_ref().map(|life| self.now.duration_since(life.started));
        tracing::info!(
            strata_incarnation = self.worker.incarnation.0,
            strata_load_ms = took.unwrap_or_default().as_secs_f64() * 1e3,
            strata_threads = ready.threads,
            strata_instruction_set = ready.instruction_set,
            strata_context = ready.context_len,
            "worker ready"
        );
        self.ready = Some(ready);
        self.is_plan_stale = true;
        self.board.touch();
        self.step(worker::Event::Ready);
        Ok(())
    }

    fn on_tokens(
        &mut self,
        id: SessionId,
        position: Position,
        tokens: Vec<Sampled>,
    ) -> Result<(), String> {
        let vocab_size = self.ready.as_ref().map_or(0, |ready| ready.vocab_size);
        let session = self.session(id)?;
        let appended = session.tokens_arrived(position, tokens, vocab_size)?;
        self.made_progress();
        let now = self.now.into_std();
        if let Some(life) = &mut self.life {
            life.shares.served(id, now);
        }
        if appended.count == 0 {
            return Ok(());
        }
        let request = self.sessions[&id].request;
        let entry = self.requests.get_mut(&request).expect("its log was open");
        entry.generated += appended.count;
        entry.first_token.get_or_insert(self.now);
        self.board.count_generated(appended.count as u64);
        self.worker.budget.proved();
        match appended.outcome {
            None => self.acks.push(id),
            Some(outcome) => {
                if matches!(outcome, Outcome::StopString(_)) {
                    self.tell_end(id);
                }
                self.choice_over(id, &outcome);
            }
        }
        Ok(())
    }

    fn on_ended(&mut self, id: SessionId, reason: EndReason) -> Result<(), String> {
        let session = self.session(id)?;
        let refused = session.worker_ended(reason)?;
        if let Some(life) = &mut self.life {
            life.shares.left(id);
        }
        self.made_progress();
        self.is_plan_stale = true;
        match refused {
            Some(outcome) => {
                tracing::error!(strata_session = id.0, ?outcome, "the worker refused a session");
                self.choice_over(id, &outcome);
            }
            None if self.sessions[&id].state == State::Ended => {
                self.sessions.remove(&id);
            }
            None => {}
        }
        Ok(())
    }

    fn on_pong(&mut self, number: u64) -> Result<(), String> {
        let Some(life) = self.life.as_mut().filter(|life| life.ping == Some(number)) else {
            return Err(format!("`Pong` {number}, which was not asked for"));
        };
        life.ping = None;
        self.made_progress();
        Ok(())
    }

    fn on_nonfinite(&mut self, report: NonFinite) -> Result<(), String> {
        tracing::warn!(
            strata_incarnation = self.worker.incarnation.0,
            strata_session = report.session.0,
            strata_position = report.position.0,
            strata_place = ?report.place,
            "the worker met a value that is not finite"
        );
        if let Some(life) = &mut self.life {
            life.nonfinite = Some(report);
        }
        self.step(worker::Event::Faulted(Reason::NonFinite));
        Ok(())
    }
}
