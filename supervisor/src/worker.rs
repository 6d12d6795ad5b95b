//! The life of the worker process: a pure state machine.
//!
//! The counterpart that acts is `event_loop/lives.rs`. Nothing here does I/O, reads a clock or
//! waits: time is an argument, what to do is returned.

pub mod budget;
pub mod exit;
pub mod link;
pub mod process;
mod stderr;
pub mod watch;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use shared::config::Config;
use shared::ids::Incarnation;
use shared::limits::WORKER_LEAVE_MAX;

use budget::Budget;
pub use exit::Reason;

/// Where the worker is in its life.
///
/// ```text
///            Begin             Ready              Recycle, Hold, Stop
///   Absent ────────► Starting ───────► Serving ──────────────────────► Draining
///     ▲                │  ▲               │                               │
///     │   load timeout,│  │         fault,│             nothing left, or  │
///     │   fault, order │  │      Recycle  │             deadline passed   │
///     │                ▼  │          now  ▼                               ▼
///     │             Recycling ◄───────────┴───────────────────────────────┘
///     │                │  ▲                (a process that exits by itself
///     │   Exited       │  │                 takes the same ways out)
///     │                │  └ kill_at passed: Kill
///     ├── stopping ────┤
///     │                ├── budget allows ──► Starting
///     │                ├── budget says wait ──► BackingOff ── until ──► Starting
///     └────────────────┴── ordered, or useless to retry ──► Held ── Release ──► Starting
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// There is no process and none is wanted: before the begin and after the stop.
    Absent,
    /// A process loads.
    Starting {
        /// When it was started.
        since: Instant,
        /// When `done_bytes` last rose.
        last_rise: Instant,
        /// Weight bytes loaded.
        done_bytes: u64,
        /// Weight bytes in all; 0 while unknown.
        total_bytes: u64,
    },
    /// A process computes.
    Serving {
        /// Since when.
        since: Instant,
    },
    /// A process finishes what it has, and is then told to leave.
    Draining {
        /// Since when it served.
        since: Instant,
        /// When it is replaced whatever it still does.
        deadline: Instant,
    },
    /// A process is ending: told to leave, leaving by itself, or killed.
    Recycling {
        /// Why.
        reason: Reason,
        /// How long it had served.
        served: Duration,
        /// Whether it was never ready.
        while_loading: bool,
        /// When to kill it; `None` once that was done.
        kill_at: Option<Instant>,
    },
    /// There is no process; the next is started at a time.
    BackingOff {
        /// That time.
        until: Instant,
        /// What failed.
        cause: String,
    },
    /// There is no process, and none is started without an order.
    Held {
        /// Who or what holds it.
        cause: String,
        /// Whether an operator did.
        by_operator: bool,
    },
}

impl State {
    /// The name in the status and the journal.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Starting { .. } => "starting",
            Self::Serving { .. } => "serving",
            Self::Draining { .. } => "draining",
            Self::Recycling { .. } => "recycling",
            Self::BackingOff { .. } => "backing_off",
            Self::Held { .. } => "held",
        }
    }
}

/// What is to become of the service when the present process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// The next process.
    Run,
    /// Nothing until an operator releases it.
    Hold,
    /// The end.
    Stop,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The service starts.
    Begin,
    /// No process could be started.
    SpawnFailed(String),
    /// Loading goes on.
    Loading {
        /// Weight bytes loaded.
        done_bytes: u64,
        /// Weight bytes in all.
        total_bytes: u64,
    },
    /// The worker can compute.
    Ready,
    /// The worker must go: it hangs, broke the protocol, or found a non-finite value.
    Faulted(Reason),
    /// The process ended by itself or was killed.
    Exited(Reason),
    /// The operator wants another process, at once or after what runs.
    Recycle {
        /// At once.
        now: bool,
    },
    /// The operator wants no process.
    Hold,
    /// The operator takes back `Hold`, or wants another try.
    Release,
    /// The service is to stop by then.
    Stop {
        /// When streams in flight are ended.
        deadline: Instant,
    },
    /// The service is to stop at once.
    StopNow,
    /// Time went by, or work came or went.
    Tick {
        /// Sessions that occupy a slot in the worker.
        owned: usize,
        /// Sessions that are not over.
        live: usize,
    },
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Start a process for this life.
    Spawn(Incarnation),
    /// Tell the process to leave.
    Leave,
    /// Kill the process.
    Kill,
    /// End every live session with this failure.
    FailAll {
        /// Its kind, as the API names it.
        kind: &'static str,
        /// What to tell the client.
        message: String,
    },
    /// Tell the operator yes.
    Accept(&'static str),
    /// Tell the operator no.
    Refuse(&'static str),
}

/// The worker as the event loop knows it: the state, and what outlives a process.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Where it is.
    pub state: State,
    /// The last life that was begun; 0 before the first.
    pub incarnation: Incarnation,
    /// What comes after the present process.
    pub intent: Intent,
    /// The crash budget.
    pub budget: Budget,
    /// Whether any life was ever ready.
    pub has_served: bool,
    load_deadline: Duration,
    drain_timeout: Duration,
}

const STOPPING: &str = "the service is stopping; send the request again later";

impl Worker {
    /// Before the first life.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            state: State::Absent,
            incarnation: Incarnation(0),
            intent: Intent::Run,
            budget: Budget::new(budget::Limits::from(config)),
            has_served: false,
            load_deadline: Duration::from_secs_f64(config.load_deadline_s),
            drain_timeout: Duration::from_secs_f64(config.drain_timeout_s),
        }
    }

    /// The one transition function: moves to the next state and returns what to do.
    #[must_use]
    pub fn step(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Begin => {
                if self.state == State::Absent && self.intent == Intent::Run {
                    self.spawn(now, &mut actions);
                }
            }
            Event::SpawnFailed(error) => {
                if self.has_process() {
                    self.after_exit(Reason::Spawn(error), now, &mut actions);
                }
            }
            Event::Loading { done_bytes, total_bytes } => {
                self.on_loading(done_bytes, total_bytes, now, &mut actions);
            }
            Event::Ready => self.on_ready(now, &mut actions),
            Event::Faulted(reason) => self.on_fault(reason, now, &mut actions),
            Event::Exited(reason) => {
                if self.has_process() {
                    self.after_exit(reason, now, &mut actions);
                }
            }
            Event::Recycle { now: at_once } => self.on_recycle(at_once, now, &mut actions),
            Event::Hold => self.on_hold(now, &mut actions),
            Event::Release => self.on_release(now, &mut actions),
            Event::Stop { deadline } => self.on_stop(deadline, &mut actions),
            Event::StopNow => self.on_stop_now(now, &mut actions),
            Event::Tick { owned, live } => self.on_tick(owned, live, now, &mut actions),
        }
        actions
    }

    /// Whether there is a process, or one is being started.
    #[must_use]
    pub fn has_process(&self) -> bool {
        match self.state {
            State::Absent | State::BackingOff { .. } | State::Held { .. } => false,
            State::Starting { .. }
            | State::Serving { .. }
            | State::Draining { .. }
            | State::Recycling { .. } => true,
        }
    }

    /// Why the present process is lost if it ends now as `exit` says, and whether it was never
    /// ready. To be asked before the step, since sessions convicted of the loss change what the
    /// budget makes of it.
    #[must_use]
    pub fn loss(&self, exit: Reason) -> (Reason, bool) {
        match &self.state {
            State::Recycling { reason, while_loading, .. } => (reason.clone(), *while_loading),
            state => (exit, matches!(state, State::Starting { .. })),
        }
    }

    /// Whether sessions may be handed to the process now.
    #[must_use]
    pub fn takes_sessions(&self) -> bool {
        match self.state {
            State::Serving { .. } => true,
            // What was accepted before the order is finished, if time allows.
            State::Draining { .. } => self.intent != Intent::Run,
            _ => false,
        }
    }

    /// When `Tick` matters next, apart from work that comes or goes.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        match &self.state {
            State::Absent | State::Serving { .. } | State::Held { .. } => None,
            State::Starting { last_rise, .. } => Some(*last_rise + self.load_deadline),
            State::Draining { deadline, .. } => Some(*deadline),
            State::Recycling { kill_at, .. } => *kill_at,
            State::BackingOff { until, .. } => Some(*until),
        }
    }

    fn spawn(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.intent = Intent::Run;
        self.incarnation = self.incarnation.next();
        self.state = State::Starting { since: now, last_rise: now, done_bytes: 0, total_bytes: 0 };
        actions.push(Action::Spawn(self.incarnation));
    }

    fn served(&self, now: Instant) -> Duration {
        match &self.state {
            State::Serving { since } | State::Draining { since, .. } => now.duration_since(*since),
            State::Recycling { served, .. } => *served,
            _ => Duration::ZERO,
        }
    }

    fn kill(&mut self, reason: Reason, now: Instant, actions: &mut Vec<Action>) {
        actions.push(Action::Kill);
        self.recycling(reason, None, now);
    }

    fn leave(&mut self, now: Instant, actions: &mut Vec<Action>) {
        actions.push(Action::Leave);
        self.recycling(Reason::Operator, Some(now + WORKER_LEAVE_MAX), now);
    }

    /// The process is ending. The first reason stays.
    fn recycling(&mut self, reason: Reason, kill_at: Option<Instant>, now: Instant) {
        let served = self.served(now);
        let (reason, while_loading) = self.loss(reason);
        self.state = State::Recycling { reason, served, while_loading, kill_at };
    }

    fn on_loading(&mut self, done: u64, total: u64, now: Instant, actions: &mut Vec<Action>) {
        match &mut self.state {
            State::Starting { last_rise, done_bytes, total_bytes, .. } => {
                if done > *done_bytes {
                    *last_rise = now;
                    *done_bytes = done;
                }
                *total_bytes = total;
            }
            State::Serving { .. } | State::Draining { .. } => {
                self.on_fault(Reason::protocol("`Loading` after `Ready`"), now, actions);
            }
            _ => {}
        }
    }

    fn on_ready(&mut self, now: Instant, actions: &mut Vec<Action>) {
        match self.state {
            State::Starting { .. } => {
                self.has_served = true;
                self.state = State::Serving { since: now };
            }
            State::Serving { .. } | State::Draining { .. } => {
                self.on_fault(Reason::protocol("`Ready` twice"), now, actions);
            }
            _ => {}
        }
    }

    fn on_fault(&mut self, reason: Reason, now: Instant, actions: &mut Vec<Action>) {
        match self.state {
            State::Starting { .. } | State::Serving { .. } | State::Draining { .. } => {
                if reason == Reason::NonFinite {
                    // It leaves by itself, with an epitaph worth waiting for.
                    self.recycling(reason, Some(now + WORKER_LEAVE_MAX), now);
                } else {
                    self.kill(reason, now, actions);
                }
            }
            _ => {}
        }
    }

    fn after_exit(&mut self, exit: Reason, now: Instant, actions: &mut Vec<Action>) {
        let served = self.served(now);
        let (reason, while_loading) = self.loss(exit);
        match self.intent {
            Intent::Stop => {
                self.state = State::Absent;
                actions.push(fail_all("shutdown", STOPPING));
            }
            Intent::Hold => self.hold("held by the operator", true, actions),
            Intent::Run if reason == Reason::Operator => self.spawn(now, actions),
            Intent::Run if while_loading && reason.is_permanent() => {
                let cause = format!("the worker cannot start: {reason}");
                self.hold(&cause, false, actions);
            }
            Intent::Run => {
                let delay = self.budget.failed(served);
                if self.budget.is_degraded() {
                    let failures = self.budget.failures();
                    let message =
                        format!("the worker failed {failures} times in a row; last: {reason}");
                    let kind = if while_loading { "load" } else { reason.failure_kind() };
                    actions.push(fail_all(kind, &message));
                }
                if delay.is_zero() {
                    self.spawn(now, actions);
                } else {
                    self.state =
                        State::BackingOff { until: now + delay, cause: reason.to_string() };
                }
            }
        }
    }

    fn hold(&mut self, cause: &str, by_operator: bool, actions: &mut Vec<Action>) {
        actions.push(fail_all("held", cause));
        self.state = State::Held { cause: cause.to_owned(), by_operator };
    }

    fn on_recycle(&mut self, at_once: bool, now: Instant, actions: &mut Vec<Action>) {
        match (self.intent, &self.state) {
            (Intent::Stop, _) => actions.push(Action::Refuse("the service is stopping")),
            (Intent::Hold, _) | (_, State::Held { by_operator: true, .. }) => {
                actions.push(Action::Refuse("the worker is held; `release` starts it again"));
            }
            (Intent::Run, State::Absent | State::BackingOff { .. } | State::Held { .. }) => {
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

    fn on_hold(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self.intent == Intent::Stop {
            actions.push(Action::Refuse("the service is stopping"));
            return;
        }
        self.intent = Intent::Hold;
        match &self.state {
            State::Absent | State::BackingOff { .. } | State::Held { .. } => {
                actions.push(Action::Accept("the worker is held"));
                self.hold("held by the operator", true, actions);
            }
            State::Starting { .. } => {
                actions.push(Action::Accept("the worker is stopped and held"));
                self.kill(Reason::Operator, now, actions);
            }
            State::Serving { since } => {
                actions.push(Action::Accept("the worker is held when what runs is finished"));
                let since = *since;
                self.state = State::Draining { since, deadline: now + self.drain_timeout };
            }
            State::Draining { .. } | State::Recycling { .. } => {
                actions.push(Action::Accept("the worker is held when what runs is finished"));
            }
        }
    }

    fn on_release(&mut self, now: Instant, actions: &mut Vec<Action>) {
        match (self.intent, &self.state) {
            (Intent::Stop, _) => actions.push(Action::Refuse("the service is stopping")),
            (_, State::Held { .. } | State::BackingOff { .. }) => {
                actions.push(Action::Accept("a worker is being started"));
                self.spawn(now, actions);
            }
            (Intent::Hold, State::Draining { since, .. }) => {
                actions.push(Action::Accept("the worker goes on"));
                self.intent = Intent::Run;
                let since = *since;
                self.state = State::Serving { since };
            }
            (Intent::Hold, _) => {
                actions.push(Action::Accept("the next worker is started when this one is gone"));
                self.intent = Intent::Run;
            }
            (Intent::Run, _) => actions.push(Action::Refuse("the worker is not held")),
        }
    }

    fn on_stop(&mut self, by: Instant, actions: &mut Vec<Action>) {
        self.intent = Intent::Stop;
        match &self.state {
            State::Absent | State::BackingOff { .. } | State::Held { .. } => {
                self.state = State::Absent;
                actions.push(fail_all("shutdown", STOPPING));
            }
            State::Serving { since } | State::Draining { since, .. } => {
                let since = *since;
                self.state = State::Draining { since, deadline: by };
            }
            // A session that waits for this start could not be finished in any stated time.
            State::Starting { .. } | State::Recycling { .. } => {
                actions.push(fail_all("shutdown", STOPPING));
            }
        }
    }

    fn on_stop_now(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.intent = Intent::Stop;
        actions.push(fail_all("shutdown", STOPPING));
        if self.has_process() {
            self.kill(Reason::Operator, now, actions);
        } else {
            self.state = State::Absent;
        }
    }

    fn on_tick(&mut self, owned: usize, live: usize, now: Instant, actions: &mut Vec<Action>) {
        match &mut self.state {
            State::Absent | State::Serving { .. } | State::Held { .. } => {}
            State::Starting { .. } if self.intent == Intent::Stop => {
                self.kill(Reason::Operator, now, actions);
            }
            State::Starting { last_rise, .. } => {
                if now >= *last_rise + self.load_deadline {
                    self.kill(Reason::LoadTimeout, now, actions);
                }
            }
            State::Draining { deadline, .. } => {
                let is_late = now >= *deadline;
                match self.intent {
                    Intent::Run if owned == 0 => self.leave(now, actions),
                    Intent::Run if is_late => self.kill(Reason::Operator, now, actions),
                    Intent::Hold | Intent::Stop if live == 0 => self.leave(now, actions),
                    Intent::Hold if is_late => {
                        actions.push(fail_all("held", "held by the operator"));
                        self.leave(now, actions);
                    }
                    Intent::Stop if is_late => {
                        actions.push(fail_all("shutdown", STOPPING));
                        self.leave(now, actions);
                    }
                    _ => {}
                }
            }
            State::Recycling { kill_at, .. } => {
                if kill_at.is_some_and(|at| now >= at) {
                    *kill_at = None;
                    actions.push(Action::Kill);
                }
            }
            State::BackingOff { until, .. } => {
                if now >= *until {
                    self.spawn(now, actions);
                }
            }
        }
    }
}

fn fail_all(kind: &'static str, message: &str) -> Action {
    Action::FailAll { kind, message: message.to_owned() }
}
