//! The table: every state against every event.

use std::time::{Duration, Instant};

use shared::config::Config;
use shared::fault::WorkerExit;
use shared::ids::Incarnation;

use super::exit::Exit;
use super::{Action, Event, Intent, Reason, State, Worker};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn exited(exit: WorkerExit) -> Reason {
    Reason::Exited { exit: Exit::Known(exit), epitaph: String::new() }
}

/// The states of the table, all entered at `at`.
fn states(at: Instant) -> Vec<State> {
    let recycling = |kill_at| State::Recycling {
        reason: Reason::Hang,
        served: seconds(0),
        while_loading: false,
        kill_at,
    };
    vec![
        State::Absent,
        State::Starting { since: at, last_rise: at, done_bytes: 1, total_bytes: 9 },
        State::Serving { since: at },
        State::Draining { since: at, deadline: at + seconds(5) },
        recycling(Some(at + seconds(5))),
        State::BackingOff { until: at + seconds(5), cause: String::new() },
        State::Held { cause: String::new(), by_operator: true },
        State::Held { cause: String::new(), by_operator: false },
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
        ("busy tick", Event::Tick { owned: 1, live: 1 }),
        ("idle tick", Event::Tick { owned: 0, live: 0 }),
    ]
}

fn verbs(actions: &[Action]) -> String {
    let verb = |action: &Action| match action {
        Action::Spawn(_) => "spawn".to_owned(),
        Action::Leave => "leave".to_owned(),
        Action::Kill => "kill".to_owned(),
        Action::FailAll { kind, .. } => format!("fail({kind})"),
        Action::Accept(_) => "yes".to_owned(),
        Action::Refuse(_) => "no".to_owned(),
    };
    actions.iter().map(verb).collect::<Vec<_>>().join(" ")
}

/// A row per event: the next state and the actions, in the order of [`states`]. `=` stays.
const TABLE: [(&str, [&str; 8]); 15] = [
    ("begin", ["starting spawn", "=", "=", "=", "=", "=", "=", "="]),
    (
        "spawn failed",
        ["=", "= spawn", "starting spawn", "starting spawn", "starting spawn", "=", "=", "="],
    ),
    ("loading", ["=", "=", "recycling kill", "recycling kill", "=", "=", "=", "="]),
    ("ready", ["=", "serving", "recycling kill", "recycling kill", "=", "=", "=", "="]),
    ("faulted", ["=", "recycling kill", "recycling kill", "recycling kill", "=", "=", "=", "="]),
    (
        "crashed",
        ["=", "= spawn", "starting spawn", "starting spawn", "starting spawn", "=", "=", "="],
    ),
    (
        "bad model",
        [
            "=",
            "held fail(held)",
            "starting spawn",
            "starting spawn",
            "starting spawn",
            "=",
            "=",
            "=",
        ],
    ),
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
            "starting yes spawn",
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
            "starting yes spawn",
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
            "= yes fail(held)",
        ],
    ),
    (
        "release",
        [
            "= no",
            "= no",
            "= no",
            "= no",
            "= no",
            "starting yes spawn",
            "starting yes spawn",
            "starting yes spawn",
        ],
    ),
    (
        "stop",
        [
            "= fail(shutdown)",
            "= fail(shutdown)",
            "draining",
            "=",
            "= fail(shutdown)",
            "absent fail(shutdown)",
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
            "absent fail(shutdown)",
        ],
    ),
    ("busy tick", ["=", "=", "=", "=", "=", "=", "=", "="]),
    ("idle tick", ["=", "=", "=", "recycling leave", "=", "=", "=", "="]),
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

fn worker(state: State, intent: Intent) -> Worker {
    Worker { state, intent, ..Worker::new(&Config::default()) }
}

fn tick(worker: &mut Worker, now: Instant) -> String {
    verbs(&worker.step(Event::Tick { owned: 1, live: 1 }, now))
}

#[test]
fn deadlines_act_when_they_pass_and_not_before() {
    let at = Instant::now();
    for (index, intent, after, expected, state) in [
        (1, Intent::Run, 119, "", "starting"),
        (1, Intent::Run, 120, "kill", "recycling"),
        (1, Intent::Stop, 0, "kill", "recycling"),
        (3, Intent::Run, 5, "kill", "recycling"),
        (3, Intent::Hold, 5, "fail(held) leave", "recycling"),
        (3, Intent::Stop, 5, "fail(shutdown) leave", "recycling"),
        (4, Intent::Run, 5, "kill", "recycling"),
        (5, Intent::Run, 5, "spawn", "starting"),
    ] {
        let mut worker = worker(states(at)[index].clone(), intent);
        let found = tick(&mut worker, at + seconds(after));
        assert_eq!((found.as_str(), worker.state.name()), (expected, state), "{index} {intent:?}");
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
            let mut worker = worker(states(at)[index].clone(), intent);
            let actions = worker.step(Event::Exited(exited(WorkerExit::Panic)), at);
            assert_eq!((verbs(&actions).as_str(), worker.state.name()), (expected, state));
        }
    }
}

#[test]
fn a_life_keeps_the_first_reason_of_its_end() {
    let at = Instant::now();
    let mut worker = worker(State::Serving { since: at }, Intent::Run);
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
    let _ = worker.step(Event::Tick { owned: 0, live: 0 }, at + seconds(1));
    let actions = worker.step(Event::Exited(exited(WorkerExit::Panic)), at);
    assert_eq!(verbs(&actions), "fail(load)");
    assert_eq!(worker.incarnation, Incarnation(3));
    assert_eq!(worker.next_wake(), Some(at + seconds(60)), "still tried, at the longest delay");
}
