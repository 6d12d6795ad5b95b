//! The worker's processes: start, signs of the end, loss and what becomes of the sessions.

use shared::ids::{Incarnation, SessionId};
use shared::limits::STRIKES_MAX;
use shared::protocol::{PROTOCOL_VERSION, Start, ToWorker};

use super::LinkInbox;
use super::life::{END_GRACE, Life};
use super::service::Service;
use crate::session::log::{Failure, Outcome};
use crate::session::{Session, State};
use crate::worker::exit::public;
use crate::worker::link::{Link, Transport, Unsendable};
use crate::worker::process::{Kill, Report};
use crate::worker::{self, Reason};

impl Service {
    /// Begins a life.
    pub(super) fn spawn(&mut self, incarnation: Incarnation) {
        let (deadline, slots) = (self.progress_deadline(), self.config.slots);
        self.life = Some(Life::new(incarnation, deadline, slots, self.now));
        self.launcher.launch(incarnation, self.channels.reports.clone());
        self.board.touch();
    }

    /// Tells the worker to leave.
    pub(super) fn leave(&mut self) {
        if let Some(life) = &mut self.life
            && life.send(ToWorker::Leave).is_err()
        {
            life.kill();
        }
    }

    pub(super) fn kill(&mut self) {
        if let Some(life) = &mut self.life {
            life.kill();
        }
    }

    /// The process was killed long ago and is still there. Nothing can be done but to say so.
    pub(super) fn report_unreaped(&mut self) {
        self.board.touch();
        tracing::warn!(
            strata_incarnation = self.worker.incarnation.0,
            strata_pid = self.life.as_ref().and_then(Life::pid),
            strata_after_s = worker::UNREAPED_MAX.as_secs(),
            "the killed worker does not end; no other is started before it does"
        );
    }

    /// A process came or went. A report of an earlier life drops its handle, which kills.
    pub(super) fn on_report(&mut self, incarnation: Incarnation, report: Report) {
        let Some(life) = self.life.as_mut().filter(|life| life.incarnation == incarnation) else {
            return;
        };
        self.board.touch();
        match report {
            Report::Launched { handle, transport } => self.on_launched(handle, transport),
            Report::NotLaunched(why) => {
                let (reason, while_loading) = self.worker.loss(Reason::Spawn(why.clone()));
                self.lose(&reason, while_loading);
                self.life = None;
                self.step(worker::Event::SpawnFailed(why));
            }
            Report::Exited { exit, epitaph } => {
                life.exit = Some((exit, epitaph));
                self.await_end();
            }
        }
    }

    fn on_launched(&mut self, handle: Box<dyn Kill>, transport: Transport) {
        let deadline = self.progress_deadline();
        let events = self.channels.events.clone();
        let start = self.start_message();
        let Some(life) = &mut self.life else { return };
        tracing::info!(
            strata_incarnation = life.incarnation.0,
            strata_pid = handle.pid(),
            "worker started"
        );
        life.launched(handle);
        let inbox = LinkInbox { incarnation: life.incarnation, events };
        match Link::open(transport, life.incarnation, deadline, inbox) {
            Ok(link) => {
                link.send(ToWorker::Start(start)).expect("the outbox of a new link is empty");
                life.link = Some(link);
            }
            Err(error) => {
                life.is_link_closed = true;
                let reason = Reason::Spawn(format!("registering its link: {error}"));
                self.step(worker::Event::Faulted(reason));
            }
        }
    }

    fn start_message(&self) -> Start {
        let config = &self.config;
        Start {
            protocol_version: PROTOCOL_VERSION,
            model: config.model.to_string_lossy().into_owned(),
            header_digest: Some(self.header_digest),
            context_len: config.context,
            slots: config.slots,
            prefill_chunk: config.prefill_chunk,
            threads: config.threads,
        }
    }

    /// One sign of the end is there: the life is over with the other, or after a grace.
    pub(super) fn await_end(&mut self) {
        let Some(life) = &mut self.life else { return };
        if life.exit.is_some() && life.is_link_closed {
            self.finish_life();
        } else {
            life.end_due.get_or_insert(self.now + END_GRACE);
        }
    }

    /// Sends, if there is a worker. One that takes no more hangs; one that is gone will be lost.
    pub(super) fn send(&mut self, message: ToWorker) {
        let Some(life) = &self.life else { return };
        match life.send(message) {
            Ok(()) => {}
            Err(Unsendable::Full) => self.hangs(),
            Err(Unsendable::Closed) => self.await_end(),
        }
    }

    /// The worker does nothing any more: it hangs, unless it is known to be ending.
    pub(super) fn hangs(&mut self) {
        if self.life.as_ref().is_some_and(|life| !life.is_ending()) {
            self.step(worker::Event::Faulted(Reason::Hang));
        }
    }

    /// Whether a sign of the end has waited long enough for the other.
    pub(super) fn check_end(&mut self) {
        let Some(life) = &mut self.life else { return };
        if life.end_due.is_none_or(|due| self.now < due) {
            return;
        }
        life.end_due = None;
        if life.exit.is_some() {
            // A child of the worker holds the link open; nothing more is expected from it.
            self.finish_life();
        } else {
            self.step(worker::Event::Faulted(Reason::LinkClosed));
        }
    }

    fn finish_life(&mut self) {
        let Some(Life { exit: Some((exit, epitaph)), .. }) = &mut self.life else { return };
        let (exit, epitaph) = (exit.clone(), std::mem::take(epitaph));
        let (reason, while_loading) = self.worker.loss(Reason::Exited { exit, epitaph });
        self.lose(&reason, while_loading);
        self.life = None;
        self.step(worker::Event::Exited(reason));
    }

    /// The process is gone: its sessions wait for the next, or are convicted.
    pub(super) fn lose(&mut self, reason: &Reason, while_loading: bool) {
        let owned = |(id, one): (&SessionId, &Session)| one.is_in_worker().then_some(*id);
        let ids: Vec<SessionId> = self.sessions.iter().filter_map(owned).collect();
        self.note_loss(reason, while_loading, ids.len());
        let may_blame = !while_loading && reason.may_be_the_sessions_fault();
        let culprit = self.life.as_ref().and_then(|life| life.nonfinite.as_ref());
        let culprit = culprit.map(|report| (report.session, report.position));
        let mut convicted = Vec::new();
        for id in ids {
            let is_blamed = may_blame && culprit.is_none_or(|(session, _)| session == id);
            let session = self.sessions.get_mut(&id).expect("collected from this very map");
            let position = culprit.map_or_else(|| session.position(), |(_, position)| position);
            let failure = Failure {
                deterministic: true,
                position: Some(position),
                ..session.failure(reason.failure_kind(), false)
            };
            session.worker_lost(is_blamed);
            if session.state == State::Ended {
                self.sessions.remove(&id);
            } else if session.strikes >= STRIKES_MAX {
                convicted.push((id, failure));
            }
        }
        self.is_plan_stale = true;
        for (id, failure) in convicted {
            self.convict(id, failure, reason);
        }
    }

    fn convict(&mut self, id: SessionId, failure: Failure, reason: &Reason) {
        let reason = reason.to_string();
        let reason = public(&reason);
        let message = format!(
            "{STRIKES_MAX} worker processes in a row ended while this request was being computed \
             and gave no new token; of the last: {reason}. Do not send it again: it would end the \
             same way"
        );
        tracing::warn!(
            strata_session = id.0,
            strata_request = self.sessions[&id].request.0,
            strata_kind = failure.kind,
            strata_position = failure.position.map(|position| position.0),
            strata_phase = failure.phase.name(),
            strata_attempts = failure.attempts,
            "a request is called the cause of its workers' deaths"
        );
        self.end_session(id, Outcome::Failed(Failure { message, ..failure }));
        // The cause is gone, and whoever died beside it is cleared.
        self.worker.budget.explained();
        for session in self.sessions.values_mut() {
            session.strikes = 0;
        }
    }

    fn note_loss(&mut self, reason: &Reason, while_loading: bool, sessions: usize) {
        let incarnation = self.worker.incarnation;
        let is_farewell = self.worker.intent == worker::Intent::Stop
            && !self.sessions.values().any(Session::is_live);
        self.board.count_loss(reason, incarnation, is_farewell);
        let name = reason.name();
        let detail = reason.to_string();
        let (incarnation, reason) = (incarnation.0, name.as_str());
        if name == "operator" {
            tracing::info!(
                strata_incarnation = incarnation,
                strata_reason = reason,
                strata_sessions = sessions,
                "worker gone"
            );
        } else {
            tracing::warn!(
                strata_incarnation = incarnation,
                strata_reason = reason,
                strata_detail = detail,
                strata_while_loading = while_loading,
                strata_sessions = sessions,
                "worker lost"
            );
        }
    }
}
