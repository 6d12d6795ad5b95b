//! Every way to die, as its supervisor sees it: exit code or signal, and one epitaph.

use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use shared::fault::WorkerExit;
use shared::protocol::{PROTOCOL_VERSION, Start, ToWorker};

use crate::peer::{Peer, code_or_signal, start};

/// The one line of an epitaph; fails if there is none or more than one.
fn epitaph(said: &str) -> &str {
    let lines: Vec<_> =
        said.lines().filter(|line| line.starts_with("strata-worker epitaph: ")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    lines[0]
}

fn assert_exit(mut peer: Peer, exit: WorkerExit, expected: &str) {
    let (status, said) = peer.end();
    assert_eq!(code_or_signal(status), (Some(i32::from(exit.code())), None), "{said}");
    assert!(epitaph(&said).contains(expected), "{said}");
}

#[test]
fn a_closed_link_ends_the_worker() {
    let mut peer = Peer::spawn();
    peer.close();
    assert_exit(peer, WorkerExit::SupervisorGone, "incarnation=0 exit=supervisor_gone(14)");
}

#[test]
fn another_protocol_version_is_named() {
    let mut peer = Peer::spawn();
    let other = Start { protocol_version: PROTOCOL_VERSION + 1, ..start("none.gguf") };
    peer.send(ToWorker::Start(other));
    assert_exit(peer, WorkerExit::Protocol, "incarnation=41 exit=protocol(10)");
}

#[test]
fn a_missing_model_is_named() {
    let mut peer = Peer::spawn();
    peer.send(ToWorker::Start(start("/nonexistent/model.gguf")));
    assert_exit(peer, WorkerExit::Model, "/nonexistent/model.gguf");
}

#[test]
fn told_to_leave_it_leaves_without_a_word() {
    let mut peer = Peer::spawn();
    peer.send(ToWorker::Leave);
    let (status, said) = peer.end();
    assert_eq!((code_or_signal(status), said.as_str()), ((Some(0), None), ""));
}

#[test]
fn without_a_link_it_explains_itself() {
    let output = Command::new(env!("CARGO_BIN_EXE_strata-worker"))
        .args(["serve", "--link-fd", "1000"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(epitaph(&said).contains("started by strata-supervisor"), "{said}");
}

#[test]
fn sigterm_leaves_and_sigint_is_the_supervisors_business() {
    let mut peer = Peer::spawn();
    peer.await_handlers();
    peer.signal(Signal::SIGINT);
    peer.signal(Signal::SIGHUP);
    peer.send(ToWorker::Ping(1));
    assert_exit(peer, WorkerExit::Protocol, "first frame was not Start");

    let mut peer = Peer::spawn();
    peer.await_handlers();
    peer.signal(Signal::SIGTERM);
    assert_eq!(code_or_signal(peer.end().0), (Some(0), None));
}

#[test]
fn fatal_signals_leave_an_epitaph_and_the_true_status() {
    let own = std::process::id();
    let fatal = [Signal::SIGSEGV, Signal::SIGILL, Signal::SIGFPE, Signal::SIGABRT, Signal::SIGBUS];
    for signal in fatal {
        let mut peer = Peer::spawn();
        peer.await_handlers();
        peer.signal(signal);
        let (status, said) = peer.end();
        assert_eq!(code_or_signal(status), (None, Some(signal as i32)), "{said}");
        assert!(epitaph(&said).contains(&format!("signal={signal} sent_by={own}")), "{said}");
    }
}

/// Not a test by itself: the process that the next one watches panic, on a thread as the pool's
/// are, while the main thread waits for it for ever.
#[test]
fn child_that_panics() {
    if std::env::var_os("STRATA_TEST_PANIC").is_some() {
        strata_worker::epitaph::install();
        let worker = std::thread::spawn(|| panic!("row 7\nis gone"));
        while !worker.is_finished() {
            std::thread::park();
        }
    }
}

#[test]
fn a_panic_on_any_thread_ends_the_process() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "deaths::child_that_panics", "--nocapture"])
        .env("STRATA_TEST_PANIC", "1")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(i32::from(WorkerExit::Panic.code())), "{said}");
    let epitaph = epitaph(&said);
    assert!(epitaph.contains("exit=panic(15) at="), "{epitaph}");
    assert!(epitaph.ends_with("detail=\"row 7 is gone\""), "{epitaph}");
}
