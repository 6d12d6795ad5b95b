//! What operators order, and how a hold or a stop waits for sessions. Pure.
//!
//! While sessions are live and the deadline of the order has not passed, a lost worker is replaced
//! as at any other time, and the drain goes on with the next one.

use std::time::Instant;

use super::{Action, Intent, Reason, State, Worker, fail_all};

const STOPPING: &str = "the service is stopping; send the request again later";
const HELD: &str = "held by the operator";

impl Worker {
    pub(super) fn on_recycle(&mut self, at_once: bool, now: Instant, actions: &mut Vec<Action>) {
        match (self.intent, &self.state) {
            (Intent::Stop, _) => actions.push(Action::Refuse("the service is stopping")),
            (Intent::Hold, _) | (_, State::Held { .. }) => {
                actions.push(Action::Refuse("the worker is held; `release` starts it again"));
            }
            (Intent::Run, State::Absent | State::BackingOff { .. }) => {
                actions.push(Action::Accept("a worker is being started"));
                self.spawn(now, actions);
            }
            (Intent::Run, State::Recycling { .. }) => {
                actions.push(Action::Accept("the worker is being replaced already"));
            }
            (Intent::Run, State::Serving { since }) if !at_once => {
                actions.push(Action::Accept("the worker is replaced when what runs is finished"));
                let since = *since;
                self.state = State::Draining { since, deadline: now + self.drain_timeout };
            }
            (Intent::Run, State::Draining { .. }) if !at_once => {
                actions.push(Action::Accept("the worker is draining already"));
            }
            (Intent::Run, _) => {
                actions.push(Action::Accept("the worker is replaced now; its streams go on"));
                self.kill(Reason::Operator, now, actions);
            }
        }
    }

    pub(super) fn on_hold(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.intent == Intent::Stop {
            actions.push(Action::Refuse("the service is stopping"));
            return;
        }
        if self.intent != Intent::Hold {
            self.intent = Intent::Hold;
            self.drain_by = Some(now + self.drain_timeout);
        }
        let is_drained = self.is_drained(now);
        match &self.state {
            State::BackingOff { .. } if !is_drained => {
                actions.push(Action::Accept("the worker is held when what runs is finished"));
            }
            State::Absent | State::BackingOff { .. } | State::Held { .. } => {
                actions.push(Action::Accept("the worker is held"));
                self.conclude(actions);
            }
            State::Starting { .. } if is_drained => {
                actions.push(Action::Accept("the worker is stopped and held"));
                self.kill(Reason::Operator, now, actions);
            }
            _ => {
                actions.push(Action::Accept("the worker is held when what runs is finished"));
                self.drain();
            }
        }
    }

    /// A process that computes finishes what it has, if the deadline of the hold or stop allows.
    fn drain(&mut self) {
        if let State::Serving { since } | State::Draining { since, .. } = self.state
            && let Some(deadline) = self.drain_by
        {
            self.state = State::Draining { since, deadline };
        }
    }

    pub(super) fn on_release(&mut self, now: Instant, actions: &mut Vec<Action>) {
        match (self.intent, &self.state) {
            (Intent::Stop, _) => actions.push(Action::Refuse("the service is stopping")),
            (_, State::Held { .. } | State::BackingOff { .. }) => {
                actions.push(Action::Accept("a worker is being started"));
                self.intent = Intent::Run;
                self.spawn(now, actions);
            }
            (Intent::Hold, State::Draining { since, .. }) => {
                actions.push(Action::Accept("the worker goes on"));
                self.intent = Intent::Run;
                let since = *since;
                self.state = State::Serving { since };
            }
            (Intent::Hold, State::Starting { .. }) => {
                actions.push(Action::Accept("the worker goes on"));
                self.intent = Intent::Run;
            }
            (Intent::Hold, _) => {
                actions.push(Action::Accept("the next worker is started when this one is gone"));
                self.intent = Intent::Run;
            }
            (Intent::Run, _) => actions.push(Action::Refuse("the worker is not held")),
        }
    }

    pub(super) fn on_stop(&mut self, by: Instant, now: Instant, actions: &mut Vec<Action>) {
        self.intent = Intent::Stop;
        self.drain_by = Some(by);
        if self.has_process() {
            self.drain();
        } else if self.is_drained(now) {
            self.conclude(actions);
        }
    }

    pub(super) fn on_stop_now(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.intent = Intent::Stop;
        self.drain_by = Some(now);
        actions.push(fail_all("shutdown", STOPPING));
        if self.has_process() {
            self.kill(Reason::Operator, now, actions);
        } else {
            self.state = State::Absent;
        }
    }

    /// Whether a hold or a stop need not wait, or may not wait longer, for sessions.
    pub(super) fn is_drained(&self, now: Instant) -> bool {
        self.intent != Intent::Run
            && (self.live == 0 || self.drain_by.is_none_or(|deadline| now >= deadline))
    }

    /// Without a process: carries out the hold or the stop.
    pub(super) fn conclude(&mut self, actions: &mut Vec<Action>) {
        match self.intent {
            Intent::Run => {}
            Intent::Hold => {
                self.fail_late(actions);
                self.state = State::Held { cause: HELD.to_owned() };
            }
            Intent::Stop => {
                self.fail_late(actions);
                self.state = State::Absent;
            }
        }
    }

    /// Ends the sessions that a hold or a stop does not wait for any longer.
    pub(super) fn fail_late(&self, actions: &mut Vec<Action>) {
        match self.intent {
            Intent::Run => {}
            Intent::Hold => actions.push(fail_all("held", HELD)),
            Intent::Stop => actions.push(fail_all("shutdown", STOPPING)),
        }
    }
}
