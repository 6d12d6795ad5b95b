//! The programs' command lines: exit codes, the configuration, the operator's tool.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use strata_tests::process::TempDir;
use strata_tests::server::{Setup, question};
use strata_tests::wait::wait_until;
use strata_tests::{programs, tiny_model};

/// A supervisor's command with what it needs to start, each of which a test may override.
fn supervisor(dir: &Path) -> Command {
    let mut command = Command::new(programs::find("strata-supervisor").unwrap());
    command
        .env("NO_COLOR", "1")
        .env_remove("STRATA_MODEL")
        .stdin(Stdio::null())
        .arg("--state-dir")
        .arg(dir.join("state"))
        .arg("--worker-program")
        .arg(programs::find("fake-worker").unwrap());
    command
}

/// Runs to the end; the end must come by itself.
fn run(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    (output.status.code().unwrap_or(-1), text)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn reasons_not_to_start_are_told_apart() {
    let dir = TempDir::new();
    let model = tiny_model::write(dir.path());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let model_arg = model.to_str().unwrap();
    let folder = dir.path().to_str().unwrap();
    let not_a_folder = dir.path().join("file");
    fs::write(&not_a_folder, "").unwrap();
    let not_a_folder = not_a_folder.to_str().unwrap();
    let unknown_key = dir.path().join("unknown.toml");
    fs::write(&unknown_key, "modle = \"x\"\n").unwrap();
    let unknown_key = unknown_key.to_str().unwrap();
    let listen = ["--listen", "127.0.0.1:0"];
    for (arguments, code, word) in [
        (vec!["--frobnicate"], 2, "--frobnicate"),
        (vec![], 3, "model"),
        (vec!["--model", model_arg, "--slots", "0"], 3, "slots"),
        (vec!["--model", model_arg, "--slots", "many"], 3, "slots"),
        (vec!["--model", model_arg, "--listen", "0.0.0.0:9"], 3, "listen"),
        (vec!["--model", model_arg, "--config", unknown_key], 3, "modle"),
        (vec!["--model", model_arg, "--config", "/dev/zero"], 3, "not a regular file"),
        (vec!["--model", model_arg, "--state-dir", ""], 3, "--state-dir"),
        (vec!["--model", model_arg, "--log", "a=b=c"], 3, "flag --log"),
        (vec!["--print-config", "--slots", "0"], 3, "slots"),
        (vec!["--print-config"], 0, "slots"),
        (vec!["--model", "no-such.gguf"], 4, "no-such.gguf"),
        (vec!["--model", folder], 4, "not a file"),
        (vec!["--model", model_arg, "--listen", &taken], 5, taken.as_str()),
        (vec!["--model", model_arg, "--state-dir", not_a_folder], 6, not_a_folder),
        (vec!["--model", model_arg, "--worker-program", "/no/such/worker"], 7, "/no/such/worker"),
    ] {
        let mut command = supervisor(dir.path());
        if !arguments.contains(&"--listen") {
            command.args(listen);
        }
        let (found, said) = run(command.args(&arguments));
        assert_eq!(found, code, "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?} must name {word}: {said}");
    }
}

#[test]
fn a_second_supervisor_on_one_state_directory_is_refused() {
    let server = Setup::fake("").serve();
    let mut second = supervisor(server.dir());
    let model = server.dir().join("tiny.gguf");
    let (code, said) = run(second.arg("--model").arg(model).args(["--listen", "127.0.0.1:0"]));
    assert_eq!(code, 6, "{said}");
    assert_eq!(server.ctl(&["status"]).status.code(), Some(0), "the first one still answers");
    server.finish();
}

#[test]
fn print_config_shows_values_and_where_they_came_from() {
    let dir = TempDir::new();
    let file = dir.path().join("strata.toml");
    fs::write(&file, "slots = 3\nqueue_limit = 9\nthreads = 1\n").unwrap();
    let mut command = supervisor(dir.path());
    command
        .arg("--config")
        .arg(&file)
        .args(["--model", "m.gguf", "--threads", "2", "--print-config"])
        .args(["--api-keys", "correct horse"])
        .env("STRATA_QUEUE_LIMIT", "11");
    let (code, said) = run(&mut command);
    assert_eq!(code, 0, "{said}");
    let line = |key: &str| said.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    assert!(line("slots = 3").contains("strata.toml"), "{said}");
    assert!(line("queue_limit = 11").contains("STRATA_QUEUE_LIMIT"), "{said}");
    assert!(line("threads = 2").contains("--threads"), "{said}");
    assert!(line("prefill_chunk = 512").contains("default"), "{said}");
    assert!(!said.contains("correct horse"), "{said}");
}

#[test]
fn the_operator_sees_and_steers() {
    let server = Setup::fake("end_every=0").serve();
    let said = text(&server.ctl(&["status"]));
    assert!(said.contains("serving"), "{said}");
    let status: Value = serde_json::from_str(&text(&server.ctl(&["status", "--json"]))).unwrap();
    assert_eq!(status["state"], "serving");
    assert_eq!(status["worker"]["pid"], server.status()["worker"]["pid"]);

    let recycled = server.ctl(&["recycle", "--now"]);
    assert!(recycled.status.success(), "{recycled:?}");
    wait_until("the next worker", Duration::from_secs(10), || {
        let status = server.status();
        status["worker"]["incarnation"] == 2 && status["state"] == "serving"
    });
    assert_eq!(server.status()["recycles"]["by_reason"]["operator"], 1);

    assert!(server.ctl(&["hold"]).status.success());
    let is_held =
        || server.status()["state"] == "held" && server.status()["worker"]["pid"].is_null();
    wait_until("hold", Duration::from_secs(10), is_held);
    let refused = server.client().post("/v1/chat/completions", &question("a", 1));
    assert_eq!(refused.status(), 503, "{}", refused.text());
    assert!(server.ctl(&["release"]).status.success());
    server.wait_ready();

    let chat = server.ctl(&["chat", "--prompt", "hello", "--max-tokens", "5"]);
    assert!(chat.status.success(), "{chat:?}");
    assert!(text(&chat).trim_end().len() >= 4, "{chat:?}");
    server.finish();
}

#[test]
fn the_operators_tool_tells_its_failures_apart() {
    let server = Setup::fake("").serve();
    assert_eq!(server.ctl(&["dance"]).status.code(), Some(2));
    assert_eq!(server.ctl(&["release"]).status.code(), Some(4), "nothing is held");
    let dir = TempDir::new();
    let output = Command::new(programs::find("strata-ctl").unwrap())
        .arg("--state-dir")
        .arg(dir.path())
        .arg("status")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("control.sock"), "{output:?}");
    server.finish();
}

#[test]
fn a_recycle_lets_what_runs_finish_and_now_does_not_wait() {
    let server = Setup::fake("end_every=0; token_ms=10").serve();
    for (arguments, is_undisturbed) in [(vec!["recycle"], true), (vec!["recycle", "--now"], false)]
    {
        let before = server.status()["tokens"]["replayed_total"].as_u64().unwrap();
        let mut stream = server.open_chat(&question("steer", 60)).unwrap();
        while stream.answer.text().len() < 5 {
            assert!(stream.step().unwrap());
        }
        assert!(server.ctl(&arguments).status.success());
        stream.finish().unwrap().assert_whole(1);
        server.wait_ready();
        let replayed = server.status()["tokens"]["replayed_total"].as_u64().unwrap() - before;
        assert_eq!(replayed == 0, is_undisturbed, "{arguments:?}: {replayed} tokens replayed");
    }
    wait_until("both recycles", Duration::from_secs(10), || server.recycles() == 2);
    server.finish();
}

#[test]
fn the_control_socket_is_the_owners_alone() {
    let server = Setup::fake("").serve();
    let socket = server.dir().join("state/control.sock");
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "mode {mode:o}");
    assert_eq!(server.client().get("/admin/recycle").status(), 404, "not on the network");
    server.finish();
    assert!(!socket.exists(), "a clean stop leaves no socket");
}

#[test]
fn a_misspelled_variable_and_a_context_that_is_cut_are_told() {
    let setup = Setup::fake("").variable("STRATA_QUEUE_LIMTI", "3").flag("--context", "200000");
    let mut server = setup.serve();
    server.allow("STRATA_QUEUE_LIMTI");
    server.allow("`context` is longer");
    let log = server.log();
    assert!(log.contains("STRATA_QUEUE_LIMTI"), "{log}");
    assert_eq!(log.matches("`context` is longer").count(), 1, "{log}");
    server.finish();
}

#[test]
fn a_line_that_is_no_text_does_not_end_a_chat() {
    let server = Setup::fake("").serve();
    assert_eq!(server.ctl(&["chat", "--temperature", "nan"]).status.code(), Some(2));
    let mut chat = Command::new(programs::find("strata-ctl").unwrap())
        .arg("--state-dir")
        .arg(server.dir().join("state"))
        .args(["chat", "--max-tokens", "4"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    chat.stdin.take().unwrap().write_all(b"one\nt\xffwo\nthree\n").unwrap();
    let output = chat.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output).lines().count() >= 3, "{output:?}");
    server.finish();
}

#[test]
fn a_measurement_that_cannot_be_written_has_failed() {
    let dir = TempDir::new();
    let model = tiny_model::write(dir.path());
    let bench = || {
        let mut command = Command::new(programs::find("strata-worker").unwrap());
        command.arg("bench").arg("-m").arg(&model).args(["-p", "0", "-n", "2", "-t", "1", "-r1"]);
        command
    };
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = bench().stdout(full).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"), "{output:?}");
    let report: Value =
        serde_json::from_str(&text(&bench().arg("--json").output().unwrap())).unwrap();
    assert!(report["prefill_tokens_per_s"].is_null(), "{report}");
    assert_eq!(report["prefill_tokens_per_s_runs"], Value::Array(Vec::new()));
    assert!(report["decode_tokens_per_s"].is_f64(), "{report}");
}
