//! The table: every state against every event.

use std::time::{Duration, Instant};

use shared::config::Config;
use shared::fault::WorkerExit;
use shared::ids::Incarnation;

use super::exit::Exit;
use super::{Action, Event, Intent, Patience, Reason, State, UNREAPED_MAX, Worker};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn exited(exit: WorkerExit) -> Reason {
    Reason::Exited { exit: Exit::Known(exit), epitaph: String::new() }
}

/// The states of the table, all entered at `at`.
fn states(at: Instant) -> Vec<State> {
    let recycling = |patience| State::Recycling {
        reason: Reason::Hang,
        served: seconds(0),
        while_loading: false,
        patience,
    };
    vec![
        State::Absent,
        State::Starting { since: at, last_rise: at, done_bytes: 1, total_bytes: 9 },
        State::Serving { since: at },
        State::Draining { since: at, deadline: at + seconds(5) },
        recycling(Patience::KillAt(at + seconds(5))),
        State::BackingOff { until: at + seconds(5), cause: String::new() },
        State::Held { cause: String::new() },
    ]
}

/// The events of the table.
fn events(at: Instant) -> Vec<(&'static str, Event)> {
    let crash = exited(WorkerExit::Panic);
    vec![
        ("begin", Event::Begin),
        ("spawn failed", Event::SpawnFailed("no program".to_owned())),
        ("loading", Event::Loading { done_bytes: 5, total_bytes: 9 }),
        ("ready", Event::Ready),
        ("faulted", Event::Faulted(Reason::Hang)),
        ("crashed", Event::Exited(crash)),
        ("bad model", Event::Exited(exited(WorkerExit::Model))),
        ("recycle", Event::Recycle { now: false }),
        ("recycle now", Event::Recycle { now: true }),
        ("hold", Event::Hold),
        ("release", Event::Release),
        ("stop", Event::Stop { deadline: at + seconds(9) }),
        ("stop now", Event::StopNow),
        ("busy tick", Event::Tick { owned: 1 }),
        ("idle tick", Event::Tick { owned: 0 }),
    ]
}

fn verbs(actions: &[Action]) -> String {
    let verb = |action: &Action| match action {
        Action::Spawn(_) => "spawn".to_owned(),
        Action::Leave => "leave".to_owned(),
        Action::Kill => "kill".to_owned(),
        Action::ReportUnreaped => "report".to_owned(),
        Action::FailAll { kind, .. } => format!("fail({kind})"),
        Action::Accept(_) => "yes".to_owned(),
        Action::Refuse(_) => "no".to_owned(),
    };
    actions.iter().map(verb).collect::<Vec<_>>().join(" ")
}

/// A row per event: the next state and the actions, in the order of [`states`]. `=` stays.
const TABLE: [(&str, [&str; 7]); 15] = [
    ("begin", ["starting spawn", "=", "=", "=", "=", "=", "="]),
    (
        "spawn failed",
        ["=", "= spawn", "starting spawn", "starting spawn", "starting spawn", "=", "="],
    ),
    ("loading", ["=", "=", "recycling kill", "recycling kill", "=", "=", "="]),
    ("ready", ["=", "serving", "recycling kill", "recycling kill", "=", "=", "="]),
    ("faulted", ["=", "recycling kill", "recycling kill", "recycling kill", "=", "=", "="]),
    ("crashed", ["=", "= spawn", "starting spawn", "starting spawn", "starting spawn", "=", "="]),
    ("bad model", ["=", "= spawn", "starting spawn", "starting spawn", "starting spawn", "=", "="]),
    (
        "recycle",
        [
            "starting yes spawn",
            "recycling yes kill",
            "draining yes",
            "= yes",
            "= yes",
            "starting yes spawn",
            "= no",
        ],
    ),
    (
        "recycle now",
        [
            "starting yes spawn",
            "recycling yes kill",
            "recycling yes kill",
            "recycling yes kill",
            "= yes",
            "starting yes spawn",
            "= no",
        ],
    ),
    (
        "hold",
        [
            "held yes fail(held)",
            "recycling yes kill",
            "draining yes",
            "= yes",
            "= yes",
            "held yes fail(held)",
            "= yes fail(held)",
        ],
    ),
    (
        "release",
        ["= no", "= no", "= no", "= no", "= no", "starting yes spawn", "starting yes spawn"],
    ),
    (
        "stop",
        [
            "= fail(shutdown)",
            "=",
            "draining",
            "=",
            "=",
            "absent fail(shutdown)",
            "absent fail(shutdown)",
        ],
    ),
    (
        "stop now",
        [
            "= fail(shutdown)",
            "recycling fail(shutdown) kill",
            "recycling fail(shutdown) kill",
            "recycling fail(shutdown) kill",
            "= fail(shutdown) kill",
            "absent fail(shutdown)",
            "absent fail(shutdown)",
        ],
    ),
    ("busy tick", ["=", "=", "=", "=", "=", "=", "="]),
    ("idle tick", ["=", "=", "=", "recycling leave", "=", "=", "="]),
];

#[test]
fn every_state_against_every_event() {
    let at = Instant::now();
    let mut wrong = Vec::new();
    for ((name, event), (row, expected)) in events(at).into_iter().zip(TABLE) {
        assert_eq!(name, row);
        for (state, expected) in states(at).into_iter().zip(expected) {
            let before = state.name();
            let mut worker = Worker { state, ..Worker::new(&Config::default()) };
            let actions = worker.step(event.clone(), at);
            let after = worker.state.name();
            let after = if after == before { "=" } else { after };
            let found = format!("{after} {}", verbs(&actions)).trim().to_owned();
            if found != expected {
                wrong.push(format!("{before} + {name}: {found}, not {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A worker of one live session, in the state of this index in [`states`]. A hold or stop waits
/// for five seconds.
fn worker(index: usize, intent: Intent, at: Instant) -> Worker {
    let state = states(at)[index].clone();
    let drain_by = Some(at + seconds(5));
    Worker { state, intent, live: 1, drain_by, ..Worker::new(&Config::default()) }
}

fn tick(worker: &mut Worker, now: Instant) -> String {
    verbs(&worker.step(Event::Tick { owned: 1 }, now))
}

#[test]
fn deadlines_act_when_they_pass_and_not_before() {
    let at = Instant::now();
    for (index, intent, after, expected, state) in [
        (1, Intent::Run, 119, "", "starting"),
        (1, Intent::Run, 120, "kill", "recycling"),
        (1, Intent::Stop, 4, "", "starting"),
        (1, Intent::Stop, 5, "fail(shutdown) kill", "recycling"),
        (1, Intent::Hold, 5, "fail(held) kill", "recycling"),
        (3, Intent::Run, 5, "kill", "recycling"),
        (3, Intent::Hold, 4, "", "draining"),
        (3, Intent::Hold, 5, "fail(held) leave", "recycling"),
        (3, Intent::Stop, 5, "fail(shutdown) leave", "recycling"),
        (4, Intent::Run, 5, "kill", "recycling"),
        (4, Intent::Stop, 5, "fail(shutdown) kill", "recycling"),
        (5, Intent::Run, 5, "spawn", "starting"),
        (5, Intent::Stop, 4, "", "backing_off"),
        (5, Intent::Stop, 5, "fail(shutdown)", "absent"),
        (5, Intent::Hold, 5, "fail(held)", "held"),
    ] {
        let mut worker = worker(index, intent, at);
        let found = tick(&mut worker, at + seconds(after));
        assert_eq!((found.as_str(), worker.state.name()), (expected, state), "{index} {intent:?}");
    }
}

#[test]
fn a_killed_process_that_does_not_end_is_reported_once_and_none_is_started_beside_it() {
    let at = Instant::now();
    for index in [1, 3, 4] {
        let mut worker = worker(index, Intent::Run, at);
        let before = worker.incarnation;
        let killed = at + seconds(120);
        assert_eq!(tick(&mut worker, killed), "kill", "{index}");
        assert_eq!(worker.next_wake(), Some(killed + UNREAPED_MAX));
        assert_eq!(tick(&mut worker, killed + UNREAPED_MAX - seconds(1)), "");
        assert_eq!(tick(&mut worker, killed + UNREAPED_MAX), "report", "{index}");
        assert_eq!(tick(&mut worker, killed + seconds(3600)), "", "once");
        assert_eq!((worker.next_wake(), worker.incarnation), (None, before));
        // It ends after all: the next is started.
        let actions = worker.step(Event::Exited(exited(WorkerExit::Panic)), killed);
        assert_eq!(verbs(&actions), "spawn");
    }
}

#[test]
fn what_comes_after_a_process_is_decided_by_the_intent() {
    let at = Instant::now();
    for (intent, expected, state) in [
        (Intent::Run, "spawn", "starting"),
        (Intent::Hold, "fail(held)", "held"),
        (Intent::Stop, "fail(shutdown)", "absent"),
    ] {
        for index in 1..5 {
            // Nobody waits, or nobody may wait any longer.
            for (live, after) in [(0, 0), (1, 5)] {
                let mut worker = Worker { live, ..worker(index, intent, at) };
                let crash = Event::Exited(exited(WorkerExit::Panic));
                let actions = worker.step(crash, at + seconds(after));
                assert_eq!((verbs(&actions).as_str(), worker.state.name()), (expected, state));
            }
        }
    }
}

#[test]
fn no_end_of_a_start_is_final() {
    let at = Instant::now();
    for has_served in [false, true] {
        for code in 0..=255 {
            let exit = WorkerExit::from_code(code).map_or(Exit::Unknown(code), Exit::Known);
            let mut worker = Worker { has_served, ..worker(1, Intent::Run, at) };
            for _ in 0..20 {
                let exit = Reason::Exited { exit: exit.clone(), epitaph: String::new() };
                let _ = worker.step(Event::Exited(exit), at);
                if worker.state.name() == "backing_off" {
                    let until = worker.next_wake().unwrap();
                    let _ = worker.step(Event::Tick { owned: 0 }, until);
                }
                assert_eq!(worker.state.name(), "starting", "{code}");
            }
            assert!(worker.budget.is_degraded());
        }
    }
}

#[test]
fn a_hold_or_stop_that_waits_for_sessions_goes_on_with_the_next_worker() {
    let at = Instant::now();
    let stop = Event::Stop { deadline: at + seconds(5) };
    for (order, intent) in [(Event::Hold, Intent::Hold), (stop, Intent::Stop)] {
        for index in 1..6 {
            // The order first, or the death first.
            for is_before in [true, false] {
                let mut worker = worker(index, Intent::Run, at);
                let crash = Event::Exited(exited(WorkerExit::Panic));
                let events = if is_before { [&order, &crash] } else { [&crash, &order] };
                let done = events.map(|event| verbs(&worker.step(event.clone(), at)));
                assert!(!done.concat().contains("fail"), "{index} {order:?}: {done:?}");
                if index == 5 {
                    assert_eq!(tick(&mut worker, at + seconds(4)), "", "backs off");
                    continue;
                }
                assert_eq!((worker.state.name(), worker.intent), ("starting", intent));
                let _ = worker.step(Event::Ready, at);
                assert_eq!(worker.state.name(), "draining");
                assert!(worker.takes_sessions() && worker.next_wake().is_some());
                worker.live = 0;
                assert_eq!(verbs(&worker.step(Event::Tick { owned: 0 }, at)), "leave");
                let _ = worker.step(Event::Exited(exited(WorkerExit::Clean)), at);
                assert!(!worker.has_process());
            }
        }
    }
}

#[test]
fn a_drain_respects_the_crash_budget() {
    let at = Instant::now();
    for (intent, end) in [(Intent::Hold, "held"), (Intent::Stop, "absent")] {
        let mut worker = worker(2, intent, at);
        let mut starts = 0;
        for now in (0..).map(|count| at + Duration::from_millis(count)).take(5000) {
            let crash = Event::Exited(exited(WorkerExit::Panic));
            let actions = if worker.has_process() { worker.step(crash, now) } else { vec![] };
            let ticked = tick(&mut worker, now);
            starts += usize::from(format!("{} {ticked}", verbs(&actions)).contains("spawn"));
        }
        assert!((3..6).contains(&starts), "{starts} starts in five seconds");
        tick(&mut worker, at + seconds(5));
        assert_eq!(worker.state.name(), end);
    }
}

#[test]
fn a_hold_taken_back_between_two_workers_changes_nothing() {
    let at = Instant::now();
    for index in [1, 3, 5] {
        let mut worker = worker(index, Intent::Hold, at);
        assert!(verbs(&worker.step(Event::Release, at)).starts_with("yes"));
        if worker.state.name() == "starting" {
            let _ = worker.step(Event::Ready, at);
        }
        assert_eq!((worker.state.name(), worker.intent), ("serving", Intent::Run));
    }
}

#[test]
fn a_life_keeps_the_first_reason_of_its_end() {
    let at = Instant::now();
    let mut worker = worker(2, Intent::Run, at);
    assert_eq!(verbs(&worker.step(Event::Faulted(Reason::NonFinite), at)), "");
    assert!(worker.next_wake().is_some(), "it leaves by itself, within a bound");
    let _ = worker.step(Event::Faulted(Reason::LinkClosed), at);
    let killed =
        Reason::Exited { exit: Exit::Signal("SIGKILL".to_owned()), epitaph: String::new() };
    assert_eq!(worker.loss(killed), (Reason::NonFinite, false));
}

#[test]
fn starts_that_fail_again_and_again_wait_longer_and_then_degrade() {
    let at = Instant::now();
    let config = Config { failures_max: 3, ..Config::default() };
    let mut worker = Worker::new(&config);
    let _ = worker.step(Event::Begin, at);
    let mut fail = || verbs(&worker.step(Event::Exited(exited(WorkerExit::Panic)), at));
    assert_eq!(fail(), "spawn");
    assert_eq!(fail(), "");
    let _ = worker.step(Event::Tick { owned: 0 }, at + seconds(1));
    let actions = worker.step(Event::Exited(exited(WorkerExit::Panic)), at);
    assert_eq!(verbs(&actions), "fail(load)");
    assert_eq!(worker.incarnation, Incarnation(3));
    assert_eq!(worker.next_wake(), Some(at + seconds(60)), "still tried, at the longest delay");
}
