//! The life of the worker process: a pure state machine.
//!
//! The counterpart that acts is `event_loop/lives.rs`. Nothing here does I/O, reads a clock or
//! waits: time is an argument, what to do is returned.

pub mod budget;
pub mod exit;
pub mod link;
mod orders;
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
///     │                │  └ patience over: Kill, then a report that it does not end
///     ├── stopping ────┤
///     │                ├── budget allows ──► Starting
///     │                ├── budget says wait ──► BackingOff ── until ──► Starting
///     └────────────────┴── ordered ──► Held ── Release ──► Starting
/// ```
///
/// A hold or a stop that waits for sessions goes through `Starting` and `BackingOff` too, until
/// they are over or its deadline has passed.
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
        /// What is done if it goes on.
        patience: Patience,
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
        /// Who holds it.
        cause: String,
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

/// What follows when a process that is to end does not. No other is started beside it: it may
/// still hold the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// It is killed at that time.
    KillAt(Instant),
    /// It was killed, and is reported if it is there at that time.
    ReportAt(Instant),
    /// It was killed, and does not end: the kernel waits for something, most likely a device.
    Spent,
}

/// How long a killed process may take to end before it is reported.
pub const UNREAPED_MAX: Duration = Duration::from_secs(2 * WORKER_LEAVE_MAX.as_secs());

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
    /// Tell the operator that the killed process does not end.
    ReportUnreaped,
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
    /// Sessions that are not over, as the event loop counted them for the present step.
    pub live: usize,
    /// Until when a hold or a stop waits for them.
    drain_by: Option<Instant>,
    load_deadline: Duration,
    drain_timeout: Duration,
}

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
            live: 0,
            drain_by: None,
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
            Event::Stop { deadline } => self.on_stop(deadline, now, &mut actions),
            Event::StopNow => self.on_stop_now(now, &mut actions),
            Event::Tick { owned } => self.on_tick(owned, now, &mut actions),
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
        let drain_by = self.drain_by.filter(|_| self.intent != Intent::Run && self.live > 0);
        [self.state_wake(), drain_by].into_iter().flatten().min()
    }

    fn state_wake(&self) -> Option<Instant> {
        match &self.state {
            State::Absent | State::Serving { .. } | State::Held { .. } => None,
            State::Starting { last_rise, .. } => Some(*last_rise + self.load_deadline),
            State::Draining { deadline, .. } => Some(*deadline),
            State::Recycling { patience, .. } => match patience {
                Patience::KillAt(at) | Patience::ReportAt(at) => Some(*at),
                Patience::Spent => None,
            },
            State::BackingOff { until, .. } => Some(*until),
        }
    }

    fn spawn(&mut self, now: Instant, actions: &mut Vec<Action>) {
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
        self.recycling(reason, Patience::ReportAt(now + UNREAPED_MAX), now);
    }

    fn leave(&mut self, now: Instant, actions: &mut Vec<Action>) {
        actions.push(Action::Leave);
        self.recycling(Reason::Operator, Patience::KillAt(now + WORKER_LEAVE_MAX), now);
    }

    /// The process is ending. The first reason stays.
    fn recycling(&mut self, reason: Reason, patience: Patience, now: Instant) {
        let served = self.served(now);
        let (reason, while_loading) = self.loss(reason);
        self.state = State::Recycling { reason, served, while_loading, patience };
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
                self.state = match self.drain_by.filter(|_| self.intent != Intent::Run) {
                    Some(deadline) => State::Draining { since: now, deadline },
                    None => State::Serving { since: now },
                };
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
                    self.recycling(reason, Patience::KillAt(now + WORKER_LEAVE_MAX), now);
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
        if self.is_drained(now) {
            self.conclude(actions);
        } else if reason == Reason::Operator {
            self.spawn(now, actions);
        } else {
            // Also what would end so again as the files are now: they may be put right.
            let delay = self.budget.failed(served);
            if self.budget.is_degraded() {
                let failures = self.budget.failures();
                let message =
                    format!("the worker failed {failures} times in a row; last: {reason}");
                let kind = if while_loading { "load" } else { reason.failure_kind() };
                actions.push(fail_all(kind, &message));
            }
            if self.budget.is_degraded() && self.intent != Intent::Run {
                self.conclude(actions);
            } else if delay.is_zero() {
                self.spawn(now, actions);
            } else {
                self.state = State::BackingOff { until: now + delay, cause: reason.to_string() };
            }
        }
    }

    fn on_tick(&mut self, owned: usize, now: Instant, actions: &mut Vec<Action>) {
        let is_drained = self.is_drained(now);
        if is_drained && self.live > 0 && self.has_process() {
            self.fail_late(actions);
        }
        match &mut self.state {
            State::Absent | State::Serving { .. } | State::Held { .. } => {}
            State::Starting { .. } if is_drained => self.kill(Reason::Operator, now, actions),
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
                    Intent::Hold | Intent::Stop if is_drained => self.leave(now, actions),
                    _ => {}
                }
            }
            State::Recycling { patience, .. } => match *patience {
                Patience::KillAt(at) if now >= at => {
                    *patience = Patience::ReportAt(now + UNREAPED_MAX);
                    actions.push(Action::Kill);
                }
                Patience::ReportAt(at) if now >= at => {
                    *patience = Patience::Spent;
                    actions.push(Action::ReportUnreaped);
                }
                _ => {}
            },
            State::BackingOff { .. } if is_drained => self.conclude(actions),
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
