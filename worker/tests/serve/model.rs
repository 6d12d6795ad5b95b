//! What a life with a real model does.

use std::collections::HashMap;
use std::io::Write;

use shared::fault::WorkerExit;
use shared::ids::{Position, SessionId, TokenId};
use shared::limits::RUN_AHEAD_MAX;
use shared::protocol::{EndReason, FromWorker, Sampling, Submit, ToWorker};

use crate::peer::{Peer, code_or_signal, start, submission, submit};

/// The model to test with, or a loud word that there is none.
fn model(test: &str) -> Option<String> {
    let model = std::env::var("STRATA_TEST_MODEL").ok();
    if model.is_none() {
        // Not `eprintln`, which the test runner keeps to itself when a test passes.
        let word = format!("SKIPPED {test}: set STRATA_TEST_MODEL to a GGUF file\n");
        std::io::stderr().write_all(word.as_bytes()).unwrap();
    }
    model
}

fn samplings() -> [Sampling; 2] {
    let warm = Sampling { seed: 7, temperature: 0.8, top_p: 0.95, ..Sampling::default() };
    [Sampling::default(), Sampling { repeat_penalty: 1.1, frequency_penalty: 0.2, ..warm }]
}

#[test]
fn a_life_from_start_to_leave() {
    let Some(model) = model("a_life_from_start_to_leave") else { return };
    let mut peer = Peer::spawn();
    peer.send(ToWorker::Start(start(&model)));
    let ready = peer.await_ready();
    assert!(ready.vocab_size > 1000 && ready.parameters > 0 && ready.weight_bytes > 0);
    assert_eq!((ready.context_len, ready.threads), (1024, 2));

    let session = submission(1, 1, 300, 20);
    peer.send(submit(&session));
    let (tokens, reason) = peer.collect(&session);
    assert_eq!((tokens.len(), reason), (20, EndReason::Length));

    let id = SessionId(2);
    let too_long = Submit { length_max: Position(1025), ..submission(2, 1, 10, 0) };
    peer.send(submit(&too_long));
    let FromWorker::Ended { session, reason: EndReason::Refused(_), .. } = peer.receive() else {
        panic!("a session over the context was taken in");
    };
    assert_eq!(session, id);

    peer.send(ToWorker::Ping(77));
    assert_eq!(peer.receive(), FromWorker::Pong(77));
    peer.send(ToWorker::Leave);
    assert_eq!(code_or_signal(peer.end().0), (Some(0), None));
}

#[test]
fn a_killed_worker_changes_no_token() {
    let Some(model) = model("a_killed_worker_changes_no_token") else { return };
    for (index, sampling) in samplings().into_iter().enumerate() {
        let whole = Submit { sampling, ..submission(1, 3, 40, 60) };
        let mut peer = Peer::ready(&model);
        peer.send(submit(&whole));
        let undisturbed = peer.collect(&whole);

        let mut life = whole.clone();
        let mut ended = None;
        for kill_after in [1, 9 + index, 23] {
            let mut peer = Peer::ready(&model);
            peer.send(submit(&life));
            let mut tokens = Vec::new();
            while ended.is_none() && tokens.len() < kill_after {
                ended = peer.take(&life, &mut tokens);
            }
            life.tokens.extend(tokens);
        }
        assert_eq!(ended, None);
        let mut peer = Peer::ready(&model);
        peer.send(submit(&life));
        let (rest, reason) = peer.collect(&life);
        let pieced: Vec<TokenId> = [&life.tokens[40..], &rest].concat();
        assert_eq!((pieced, reason), undisturbed, "sampling {index}");
    }
}

#[test]
fn company_changes_no_token() {
    let Some(model) = model("company_changes_no_token") else { return };
    let sessions: Vec<Submit> = (1..=4)
        .map(|id| {
            let sampling = samplings()[id % 2].clone();
            let id = u32::try_from(id).unwrap();
            Submit { sampling, ..submission(u64::from(id), id, 30 + id * 50, 24) }
        })
        .collect();
    let mut alone = HashMap::new();
    let mut peer = Peer::ready(&model);
    for session in &sessions {
        peer.send(submit(session));
        alone.insert(session.session, peer.collect(session).0);
    }

    let mut peer = Peer::ready(&model);
    for session in &sessions {
        peer.send(submit(session));
    }
    let mut together: HashMap<SessionId, Vec<TokenId>> = HashMap::new();
    let mut ended = 0;
    while ended < sessions.len() {
        match peer.receive() {
            FromWorker::Tokens { session, position, tokens } => {
                let position = position.plus(tokens.len() - 1);
                together.entry(session).or_default().extend(tokens.iter().map(|s| s.token));
                peer.send(ToWorker::Ack { session, position });
            }
            FromWorker::Ended { .. } => ended += 1,
            _ => {}
        }
    }
    assert_eq!(together, alone);
}

#[test]
fn nothing_is_computed_beyond_the_run_ahead_bound() {
    let Some(model) = model("nothing_is_computed_beyond_the_run_ahead_bound") else { return };
    let mut peer = Peer::ready(&model);
    peer.send(submit(&submission(1, 1, 10, 100)));
    let last = 10 + RUN_AHEAD_MAX - 1;
    while !matches!(peer.receive(), FromWorker::Tokens { position, .. } if position.0 == last) {}
    peer.send(ToWorker::Ping(5));
    assert_eq!(peer.receive(), FromWorker::Pong(5));
    peer.send(ToWorker::End { session: SessionId(1), keep: Position(12) });
    let expected =
        FromWorker::Ended { session: SessionId(1), length: Position(12), reason: EndReason::Told };
    assert_eq!(peer.receive(), expected);
}

#[test]
fn an_orphan_stops_computing_at_once() {
    let Some(model) = model("an_orphan_stops_computing_at_once") else { return };
    let mut peer = Peer::ready(&model);
    peer.send(submit(&submission(1, 1, 900, 100)));
    assert!(matches!(peer.receive(), FromWorker::Progress { .. }));
    peer.close();
    let exit = i32::from(WorkerExit::SupervisorGone.code());
    assert_eq!(code_or_signal(peer.end().0), (Some(exit), None));

    let mut peer = Peer::spawn();
    peer.send(ToWorker::Start(start(&model)));
    assert!(matches!(peer.receive(), FromWorker::Loading { .. } | FromWorker::Ready(_)));
    peer.close();
    assert_eq!(code_or_signal(peer.end().0), (Some(exit), None));
}

#[test]
fn a_prefill_is_cancelled_before_its_first_token() {
    let Some(model) = model("a_prefill_is_cancelled_before_its_first_token") else { return };
    let mut peer = Peer::ready(&model);
    let before = submission(1, 2, 200, 8);
    peer.send(submit(&before));
    let expected = peer.collect(&before);

    peer.send(submit(&submission(2, 1, 900, 100)));
    assert!(matches!(peer.receive(), FromWorker::Progress { .. }));
    peer.send(ToWorker::End { session: SessionId(2), keep: Position(900) });
    loop {
        match peer.receive() {
            FromWorker::Progress { .. } => {}
            FromWorker::Ended { length: Position(900), reason: EndReason::Told, .. } => break,
            other => panic!("{other:?}"),
        }
    }

    let after = Submit { session: SessionId(3), ..before };
    peer.send(submit(&after));
    assert_eq!(peer.collect(&after), expected, "an aborted pass leaves nothing behind");
}

/// A copy of the model that is removed in the end.
struct Copy(std::path::PathBuf);

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_weight_file_cut_while_mapped_is_named_as_the_cause() {
    let Some(model) = model("a_weight_file_cut_while_mapped_is_named_as_the_cause") else { return };
    let name = format!("strata-cut-{}.gguf", std::process::id());
    let copy = Copy(std::env::temp_dir().join(name));
    std::fs::copy(&model, &copy.0).unwrap();
    let mut peer = Peer::ready(copy.0.to_str().unwrap());
    let file = std::fs::OpenOptions::new().write(true).open(&copy.0).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    peer.send(submit(&submission(1, 1, 100, 10)));
    let (status, said) = peer.end();
    let exit = i32::from(WorkerExit::WeightsUnreadable.code());
    assert_eq!(code_or_signal(status), (Some(exit), None), "{said}");
    assert!(said.contains("exit=weights_unreadable(17) signal=SIGBUS address=0x"), "{said}");
}
