//! Seeded schedules of faults against the real supervisor. Whatever the workers do, every stream
//! ends exactly once, and with the text of an undisturbed run.
//!
//! The seed is printed first. `STRATA_SEED=N cargo chaos` repeats a schedule,
//! `STRATA_ROUNDS=N` runs more of them.

use serde_json::{Value, json};
use strata_tests::random::Random;
use strata_tests::server::Setup;
use strata_tests::sse::Answer;
use strata_tests::wait::wait_until;

/// Sets the number of schedules.
const ROUNDS_VARIABLE: &str = "STRATA_ROUNDS";

const ROUNDS: usize = 6;

/// Lives with a fault; the next one is good.
const BAD_LIVES: u64 = 8;

const TOKENS: u32 = 80;

/// Positions at which troubles may strike: from within the shortest prompt to past the longest.
const POSITIONS: usize = 140;

fn requests() -> Vec<Value> {
    let body = |text: &str, temperature: f64, n: u32| {
        json!({
            "messages": [{"role": "user", "content": text}],
            "max_tokens": TOKENS,
            "temperature": temperature,
            "seed": 11,
            "n": n,
        })
    };
    vec![
        body("a", 0.0, 1),
        body("the second of the requests", 0.8, 1),
        body("the third of them is a little longer than the others", 0.0, 1),
        body("choices", 0.8, 2),
    ]
}

/// A fault for one life.
fn trouble(random: &mut Random) -> String {
    let at = random.below(POSITIONS);
    let deaths = ["KILL", "SEGV", "ABRT", "BUS", "15", "12", "1", "0"];
    let death = *random.pick(&deaths);
    let placed = [
        "stall_at",
        "nonfinite_at",
        "wrong_incarnation_at",
        "gap_at",
        "repeat_at",
        "torn_frame_at",
        "garbage_at",
        "huge_frame_at",
        "unknown_session_at",
        "bad_token_at",
    ];
    match random.below(8) {
        0..3 => format!("{}={at}", random.pick(&placed)),
        3 => format!("die_at={at}:{death}"),
        4 => format!("die_in_prefill={death}"),
        5 => format!("die_at_end={death}"),
        6 => format!("fail_load={death}"),
        _ => (*random.pick(&["no_pong", "overrun", "ignore_leave", "ignore_end"])).to_owned(),
    }
}

fn script(random: &mut Random) -> String {
    let mut script = "end_every=90; token_ms=1; chunk_ms=3".to_owned();
    for life in 1..=BAD_LIVES {
        script.push_str(&format!("; {life}:{}", trouble(random)));
    }
    script
}

/// Exactly one end: its own, or one error that is about a worker and no other.
fn assert_lawful(answer: &Answer, expected: &Answer) {
    if answer.errors.is_empty() {
        answer.assert_whole(expected.choices.len());
        assert_eq!(answer.choices, expected.choices);
        return;
    }
    // Three bad lives in a row with no token in between are blamed on the request: an honest
    // error, and all that was sent before it is the beginning of the right text.
    assert_eq!(answer.errors.len(), 1, "{answer:?}");
    assert!(answer.errors[0]["attempts"].as_u64() >= Some(3), "{answer:?}");
    assert!(!answer.is_done, "{answer:?}");
    for (index, choice) in &answer.choices {
        let whole = &expected.choices[index].text;
        assert!(whole.starts_with(&choice.text), "{choice:?} is no beginning of {whole:?}");
    }
}

fn run_round(seed: u64, expected: &[Answer]) -> usize {
    let mut random = Random::new(seed);
    let script = script(&mut random);
    eprintln!("round {seed}: {script}");
    let mut server = Setup::fake(&script)
        .flag("--progress-deadline-s", "0.5")
        .flag("--load-deadline-s", "1")
        .flag("--restart-delay-max-s", "0.2")
        .flag("--failures-max", "1000")
        .start();
    for allowed in ["worker", "not finite", "cause"] {
        server.allow(allowed);
    }
    server.wait_ready();
    let requests = requests();
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let readers: Vec<_> =
            requests.iter().map(|request| scope.spawn(|| server.chat(request))).collect();
        readers.into_iter().map(|reader| reader.join().expect("a lawful stream")).collect()
    });
    for (answer, expected) in answers.iter().zip(expected) {
        assert_lawful(answer, expected);
    }
    wait_until("rest", std::time::Duration::from_secs(30), || {
        let status = server.status();
        status["requests"]["active"] == 0 && status["state"] == "serving"
    });
    server.finish();
    answers.iter().filter(|answer| answer.errors.is_empty()).count()
}

#[test]
fn every_schedule_of_faults_leaves_every_stream_lawful() {
    let mut random = Random::announced("chaos");
    let rounds = std::env::var(ROUNDS_VARIABLE)
        .map_or(ROUNDS, |text| text.parse().expect("STRATA_ROUNDS is a number"));
    let calm = Setup::fake("end_every=90").serve();
    let expected: Vec<Answer> = requests().iter().map(|request| calm.chat(request)).collect();
    calm.finish();
    let whole: usize = (0..rounds).map(|_| run_round(random.bits(), &expected)).sum();
    eprintln!("{rounds} rounds, {whole} of {} streams whole", rounds * expected.len());
    assert!(whole * 2 > rounds * expected.len(), "hardly any stream came through");
}
