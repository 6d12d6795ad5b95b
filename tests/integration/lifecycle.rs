//! The life of the worker: every death, hang and lie of it, and what the client sees: nothing.

use std::fs::File;
use std::io::pipe;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;
use strata_tests::process;
use strata_tests::server::{Server, Setup, question};
use strata_tests::wait::{wait_for, wait_until};

const CHAT: &str = "/v1/chat/completions";

/// Prompt tokens of [`ask`]'s request under the tiny model's template, so that scripts can name
/// positions: `<|im_start|>user\n`, the text, `<|im_end|>\n<|im_start|>assistant\n`.
const PROMPT_LEN: u32 = 6 + 4 + 2 + 11;

const TOKENS: u32 = 60;

fn ask(server: &Server) -> String {
    let answer = server.chat(&question("life", TOKENS));
    answer.assert_whole(1);
    assert_eq!(answer.end(), "length");
    answer.text().to_owned()
}

/// The text of a server whose worker does nothing wrong.
fn undisturbed() -> String {
    let server = Setup::fake("end_every=0").serve();
    let response = server.client().post(CHAT, &question("life", 1));
    assert_eq!(response.json()["usage"]["prompt_tokens"], PROMPT_LEN, "see PROMPT_LEN");
    let text = ask(&server);
    server.finish();
    text
}

fn state(server: &Server) -> String {
    server.status()["state"].as_str().unwrap_or_default().to_owned()
}

/// Allows what a lost worker logs.
fn allow_losses(server: &mut Server) {
    server.allow("worker lost");
    server.allow("strata-worker epitaph");
}

#[test]
fn whatever_a_worker_does_the_stream_goes_on() {
    let expected = undisturbed();
    let middle = PROMPT_LEN + 20;
    let first = PROMPT_LEN;
    for (script, reason) in [
        (format!("1:die_at={middle}:KILL"), "sigkill"),
        (format!("1:die_at={first}:SEGV; 2:die_at={middle}:ABRT"), "sigsegv"),
        (format!("1:die_at={middle}:15"), "panic"),
        (format!("1:die_at={middle}:99"), "exit_99"),
        ("1:die_in_prefill=KILL".to_owned(), "sigkill"),
        ("1:die_at_end=KILL".to_owned(), "sigkill"),
        (format!("1:nonfinite_at={middle}"), "nonfinite"),
        (format!("1:gap_at={middle}"), "protocol"),
        (format!("1:repeat_at={middle}"), "protocol"),
        (format!("1:garbage_at={middle}"), "protocol"),
        (format!("1:huge_frame_at={middle}"), "protocol"),
        (format!("1:unknown_session_at={middle}"), "protocol"),
        (format!("1:wrong_incarnation_at={middle}"), "protocol"),
        (format!("1:bad_token_at={middle}"), "protocol"),
        (format!("1:torn_frame_at={middle}"), ""),
    ] {
        let mut server = Setup::fake(&format!("end_every=0; {script}")).serve();
        allow_losses(&mut server);
        server.allow("not finite");
        let text = ask(&server);
        assert_eq!(text, expected, "{script}");
        let what = format!("the loss to be counted after {script}");
        wait_until(&what, Duration::from_secs(5), || server.recycles() > 0);
        let reasons = server.status()["recycles"]["by_reason"].clone();
        assert!(reason.is_empty() || reasons[reason].is_u64(), "{script}: {reasons}");
        server.wait_ready();
        server.finish();
    }
}

#[test]
fn a_worker_that_dies_while_loading_is_started_again() {
    let mut server = Setup::fake("end_every=0; 1:fail_load=KILL; 2:fail_load=16").serve();
    allow_losses(&mut server);
    let worker = server.status()["worker"].clone();
    assert_eq!(worker["incarnation"], 3, "{worker}");
    assert_eq!(ask(&server).len(), TOKENS as usize);
    server.finish();
}

#[test]
fn a_whole_answer_only_takes_longer() {
    let expected = undisturbed();
    let script = format!("end_every=0; 1:die_at={}:KILL", PROMPT_LEN + 30);
    let mut server = Setup::fake(&script).serve();
    allow_losses(&mut server);
    let response = server.client().post(CHAT, &question("life", TOKENS));
    assert_eq!(response.status(), 200, "{}", response.text());
    let answer = response.json();
    assert_eq!(answer["choices"][0]["message"]["content"], expected);
    assert_eq!(answer["usage"]["completion_tokens"], TOKENS, "replayed tokens are not billed");
    server.finish();
}

#[test]
fn a_stopped_worker_is_replaced_after_the_progress_deadline() {
    let setup = Setup::fake("end_every=0; token_ms=10").flag("--progress-deadline-s", "1");
    let mut server = setup.serve();
    allow_losses(&mut server);
    let mut stream = server.open_chat(&question("life", TOKENS)).unwrap();
    while stream.answer.text().len() < 10 {
        assert!(stream.step().unwrap());
    }
    let stopped = server.signal_worker(Signal::SIGSTOP);
    let answer = stream.finish().unwrap();
    answer.assert_whole(1);
    assert_eq!(answer.text(), undisturbed());
    assert!(!process::is_alive(stopped), "the stopped worker is gone");
    assert_eq!(server.status()["recycles"]["by_reason"]["hang"], 1);
    server.finish();
}

#[test]
fn stalls_and_silence_are_hangs() {
    for script in [format!("1:stall_at={}", PROMPT_LEN + 5), "1:no_pong".to_owned()] {
        let setup = Setup::fake(&format!("end_every=0; {script}"));
        let mut server = setup.flag("--progress-deadline-s", "1").serve();
        allow_losses(&mut server);
        if script.contains("stall") {
            assert_eq!(ask(&server), undisturbed());
        }
        wait_until("the hang to be seen", Duration::from_secs(30), || {
            server.status()["recycles"]["by_reason"]["hang"] == 1
        });
        server.wait_ready();
        server.finish();
    }
}

#[test]
fn a_load_without_progress_is_a_hang() {
    let setup = Setup::fake("end_every=0; 1:load_stall").flag("--load-deadline-s", "1");
    let mut server = setup.serve();
    allow_losses(&mut server);
    assert_eq!(server.status()["recycles"]["by_reason"]["load_timeout"], 1);
    server.finish();
}

#[test]
fn a_long_slow_prefill_is_no_hang() {
    // Each chunk takes 0.8 of the deadline, the whole prompt eight times the deadline.
    let setup = Setup::fake("end_every=0; chunk_ms=800").flag("--prefill-chunk", "16");
    let server = setup.flag("--progress-deadline-s", "1").serve();
    let start = Instant::now();
    let answer = server.chat(&question(&"slow ".repeat(30), 5));
    answer.assert_whole(1);
    assert!(start.elapsed() > Duration::from_secs(7), "{:?}", start.elapsed());
    assert!(answer.comments > 0, "the silence of a stream is broken by comments");
    assert_eq!(server.recycles(), 0);
    server.finish();
}

#[test]
fn no_worker_outlives_its_supervisor() {
    // Three kinds of workers: idle, computing, and stuck.
    let stuck = format!("end_every=0; stall_at={PROMPT_LEN}");
    for script in ["", "end_every=0; token_ms=10", stuck.as_str()] {
        let mut server = Setup::fake(script).serve();
        let worker = server.worker_pid();
        let _stream = server.open_chat(&question("life", 500)).unwrap();
        process::signal(server.pid(), Signal::SIGKILL);
        let killed = Instant::now();
        wait_until("the worker's end", Duration::from_secs(1), || !process::is_alive(worker));
        assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
        server.wait_exit(Duration::from_secs(5));
    }
}

#[test]
fn a_stop_lets_streams_finish() {
    let mut server = Setup::fake("end_every=0; token_ms=20").serve();
    let worker = server.worker_pid();
    let mut stream = server.open_chat(&question("life", TOKENS)).unwrap();
    while stream.answer.text().is_empty() {
        assert!(stream.step().unwrap());
    }
    process::signal(server.pid(), Signal::SIGTERM);
    let answer = stream.finish().unwrap();
    answer.assert_whole(1);
    assert_eq!(answer.end(), "length");
    assert_eq!(server.wait_exit(Duration::from_secs(10)).code(), Some(0));
    assert!(!process::is_alive(worker));
}

#[test]
fn a_stop_gives_long_streams_one_honest_error() {
    let setup = Setup::fake("end_every=0; token_ms=20").flag("--drain-timeout-s", "1");
    let mut server = setup.serve();
    let mut stream = server.open_chat(&question("life", 5000)).unwrap();
    while stream.answer.text().is_empty() {
        assert!(stream.step().unwrap());
    }
    process::signal(server.pid(), Signal::SIGTERM);
    let answer = stream.finish().unwrap();
    assert_eq!(answer.errors.len(), 1, "{answer:?}");
    assert!(answer.choices[&0].ends.is_empty(), "an error is the only end");
    assert_eq!(answer.errors[0]["retryable"], true, "{answer:?}");
    assert_eq!(server.wait_exit(Duration::from_secs(15)).code(), Some(0));
}

#[test]
fn failures_in_a_row_end_in_an_honest_degraded_state_and_heal() {
    let setup = Setup::fake("end_every=0; 2-7:fail_load=16")
        .flag("--failures-max", "3")
        .flag("--restart-delay-s", "0.3")
        .flag("--restart-delay-max-s", "1");
    let mut server = setup.serve();
    allow_losses(&mut server);
    server.allow("degraded");
    server.signal_worker(Signal::SIGKILL);
    wait_until("degraded", Duration::from_secs(30), || state(&server) == "degraded");
    let refused = server.client().post(CHAT, &question("life", 3));
    assert_eq!(refused.status(), 503, "{}", refused.text());
    assert!(refused.head.field("retry-after").is_some());
    assert_eq!(server.client().get("/readyz").status(), 503);
    assert_eq!(server.client().get("/livez").status(), 200);
    assert!(server.status()["last_failure"]["detail"].is_string());
    wait_until("service again", Duration::from_secs(30), || state(&server) == "serving");
    assert_eq!(ask(&server).len(), TOKENS as usize);
    server.finish();
}

#[test]
fn a_request_that_kills_every_worker_is_told_so_once() {
    let position = PROMPT_LEN + 10;
    for (script, kind) in [
        (format!("nonfinite_at={position}"), "nonfinite"),
        (format!("die_at={position}:SEGV"), "crash"),
    ] {
        let mut server = Setup::fake(&format!("end_every=0; {script}")).serve();
        allow_losses(&mut server);
        server.allow("not finite");
        server.allow("called the cause");
        let answer = server.chat(&question("life", TOKENS));
        assert_eq!(answer.errors.len(), 1, "{answer:?}");
        assert_eq!(answer.text().len(), 10, "what was good was sent");
        assert!(answer.choices[&0].ends.is_empty(), "an error is the only end");
        let error = &answer.errors[0];
        assert_eq!(error["kind"], kind, "{error}");
        assert_eq!(error["deterministic"], true, "{error}");
        assert_eq!(error["retryable"], false, "{error}");
        // The first life gave ten tokens; three more gave none.
        assert_eq!(error["attempts"], 4, "{error}");
        server.wait_ready();
        let whole = server.client().post(CHAT, &question("life", TOKENS));
        assert_eq!(whole.status(), 500, "{}", whole.text());
        assert_eq!(whole.head.field("x-should-retry"), Some("false"));
        server.wait_ready();
        let other = server.chat(&question("lives", 5));
        other.assert_whole(1);
        server.finish();
    }
}

#[test]
fn one_poisonous_request_does_not_end_the_others() {
    let position = PROMPT_LEN + 200;
    let mut server =
        Setup::fake(&format!("end_every=0; token_ms=2; die_at={position}:SEGV")).serve();
    allow_losses(&mut server);
    server.allow("called the cause");
    let mut poison = server.open_chat(&question("life", 300)).unwrap();
    while poison.answer.text().is_empty() {
        assert!(poison.step().unwrap());
    }
    // Ends below the position that kills.
    let good = server.chat(&question("a longer text than life", 150));
    good.assert_whole(1);
    let poison = poison.finish().unwrap();
    assert_eq!(poison.errors.len(), 1, "{poison:?}");
    server.wait_ready();
    server.finish();
}

#[test]
fn an_ignored_leave_is_answered_with_a_kill() {
    let mut server = Setup::fake("end_every=0; 1:ignore_leave").serve();
    allow_losses(&mut server);
    let old = server.worker_pid();
    let output = server.ctl(&["recycle"]);
    assert!(output.status.success(), "{output:?}");
    wait_for("the new worker", Duration::from_secs(20), || {
        let worker = &server.status()["worker"];
        (worker["incarnation"] == 2 && worker["state"] == "serving").then_some(())
    });
    assert!(!process::is_alive(old));
    assert_eq!(server.status()["recycles"]["by_reason"]["operator"], 1);
    server.finish();
}

#[test]
fn a_worker_that_floods_its_stderr_blocks_nobody() {
    let setup = Setup::fake(&format!("end_every=0; flood_at={}", PROMPT_LEN + 3));
    let mut server = setup.serve();
    server.allow("worker stderr");
    assert_eq!(ask(&server), undisturbed());
    assert!(server.log().len() < 64 << 10, "the flood is cut: {} bytes", server.log().len());
    assert_eq!(server.recycles(), 0);
    server.finish();
}

#[test]
fn a_worker_that_runs_ahead_without_end_harms_no_text() {
    let server = Setup::fake("end_every=0; overrun").serve();
    let full = ask(&server);
    let mut body = question("life", TOKENS);
    body["stop"] = json!([full[30..34]]);
    let answer = server.chat(&body);
    answer.assert_whole(1);
    assert_eq!(answer.text(), &full[..full.find(&full[30..34]).unwrap()]);
    server.finish();
}

#[test]
fn a_refused_session_is_an_error_and_no_loop() {
    let mut server = Setup::fake("refuse").serve();
    server.allow("refused a session");
    let response = server.client().post(CHAT, &question("life", 3));
    assert_eq!(response.status(), 500, "{}", response.text());
    assert_eq!(server.recycles(), 0);
    server.finish();
}

#[test]
fn choices_survive_as_single_answers_do() {
    let mut body = question("life", TOKENS);
    body["n"] = json!(3);
    body["temperature"] = json!(0.8);
    body["seed"] = json!(5);
    let calm = Setup::fake("end_every=0").serve();
    let expected = calm.chat(&body);
    calm.finish();
    let script = format!("end_every=0; 1:die_at={}:KILL", PROMPT_LEN + 25);
    let mut server = Setup::fake(&script).serve();
    allow_losses(&mut server);
    let answer = server.chat(&body);
    answer.assert_whole(3);
    assert_eq!(answer.choices, expected.choices);
    server.finish();
}

#[test]
fn a_log_that_nobody_takes_ends_nothing() {
    let (gone, broken) = pipe().unwrap();
    drop(gone);
    // Its reader stays and reads nothing.
    let (_still, stuck) = pipe().unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    for sink in [OwnedFd::from(broken), stuck.into(), full.into()] {
        let setup = Setup::fake("end_every=0").flag("--log", "trace").log_to(sink);
        let server = setup.serve();
        for _ in 0..10 {
            assert_eq!(ask(&server).len(), TOKENS as usize);
        }
        assert_eq!(server.recycles(), 0);
        server.finish();
    }
}

#[test]
fn a_log_whose_reader_goes_in_mid_stream_cuts_no_stream() {
    let (reader, writer) = pipe().unwrap();
    let setup = Setup::fake("end_every=0; token_ms=5").flag("--log", "trace").log_to(writer);
    let server = setup.serve();
    let mut stream = server.open_chat(&question("life", TOKENS)).unwrap();
    assert!(stream.step().unwrap());
    drop(reader);
    stream.finish().unwrap().assert_whole(1);
    assert_eq!(ask(&server).len(), TOKENS as usize);
    server.finish();
}

#[test]
fn signals_that_mean_nothing_cut_no_stream() {
    let server = Setup::fake("end_every=0; token_ms=5").serve();
    let mut stream = server.open_chat(&question("life", TOKENS)).unwrap();
    assert!(stream.step().unwrap());
    for signal in [Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2] {
        process::signal(server.pid(), signal);
    }
    stream.finish().unwrap().assert_whole(1);
    assert_eq!(server.recycles(), 0);
    for name in ["SIGHUP", "SIGUSR1", "SIGUSR2"] {
        assert!(server.log().contains(name), "{}", server.log());
    }
    server.finish();
}
