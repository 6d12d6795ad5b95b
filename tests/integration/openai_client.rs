//! The Python client `openai`, pinned, against the real programs: what it promises its users must
//! hold here, and how often it retries is counted by our access log.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use strata_tests::python::Python;
use strata_tests::server::{Server, Setup, question};
use strata_tests::wait::wait_until;
use strata_tests::{model, programs};

const PACKAGE: &str = "openai==3.57.0";

fn script(python: &Python, packages: &Path, server: &Server, check: &str) -> Command {
    let mut command = python.command();
    command
        .arg(programs::workspace().join("tests/integration/openai_client.py"))
        .arg(check)
        .arg(format!("http://{}/v1", server.address()))
        .env("PYTHONPATH", packages)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // A proxy of the environment has no business on loopback.
        .env("NO_PROXY", "127.0.0.1");
    command
}

fn assert_passes(command: &mut Command, server: &Server) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}\n{}", server.log());
    eprintln!("{said}");
}

/// Lines of the access log for chat requests with this status.
fn requests(server: &Server, status: u16) -> usize {
    let status = format!("status={status}");
    let log = server.log();
    let is_request =
        |line: &&str| line.contains("path=/v1/chat/completions") && line.contains(&status);
    log.lines().filter(is_request).count()
}

fn client() -> (Python, std::path::PathBuf) {
    let python = Python::find().unwrap_or_else(|why| panic!("{why}"));
    let packages = python.packages("openai", &[PACKAGE]).unwrap_or_else(|why| panic!("{why}"));
    (python, packages)
}

#[test]
fn the_openai_client_is_content() {
    let (python, packages) = client();
    let model = model::fetch().unwrap_or_else(|why| panic!("{why}"));
    let server = Setup::real(Some(&model)).serve();
    assert_passes(&mut script(&python, &packages, &server, "answers"), &server);
    wait_until("the cancel", Duration::from_secs(10), || {
        server.status()["requests"]["cancelled"] == 1 && server.status()["requests"]["active"] == 0
    });
    server.finish();
}

#[test]
fn the_openai_client_retries_as_often_as_it_should() {
    let (python, packages) = client();
    // A deterministic failure must not be sent again: x-should-retry says so.
    let mut server = Setup::fake("refuse").serve();
    server.allow("refused a session");
    assert_passes(&mut script(&python, &packages, &server, "hopeless"), &server);
    wait_until("the access log", Duration::from_secs(5), || requests(&server, 500) > 0);
    assert_eq!(requests(&server, 500), 1, "{}", server.log());
    server.finish();
    // A loading server must be asked again, until it serves. The client itself takes a while to
    // start, so loading takes longer.
    let server = Setup::fake("load_ms=6000; end_every=0").start();
    assert_passes(&mut script(&python, &packages, &server, "patient"), &server);
    wait_until("the access log", Duration::from_secs(5), || requests(&server, 200) == 1);
    let retried = requests(&server, 503);
    assert!((1..=5).contains(&retried), "{retried} refusals:\n{}", server.log());
    server.finish();
    // So must a full queue.
    let setup = Setup::fake("end_every=0; token_ms=20");
    let server = setup.flag("--slots", "1").flag("--queue-limit", "0").serve();
    let busy = server.open_chat(&question("busy", 5000)).unwrap();
    std::thread::scope(|scope| {
        let mut command = script(&python, &packages, &server, "patient");
        let server = &server;
        scope.spawn(move || assert_passes(&mut command, server));
        wait_until("a refusal", Duration::from_secs(60), || requests(server, 429) > 0);
        drop(busy);
    });
    let retried = requests(&server, 429);
    assert!((1..=5).contains(&retried), "{retried} refusals:\n{}", server.log());
    server.finish();
}
