//! The supervisor's end of the link, played by a test against the real binary.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shared::frame::{self, FrameReader};
use shared::ids::{Incarnation, Position, SessionId, TokenId};
use shared::protocol::{
    EndReason, FromWorker, Message, PROTOCOL_VERSION, Ready, Start, Submit, ToWorker,
};

/// Longest wait for anything; a loaded machine with an unoptimised build is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

const INCARNATION: Incarnation = Incarnation(41);

/// A worker process and the other end of its link. Dropping it leaves no process behind.
pub(crate) struct Peer {
    pub(crate) child: Child,
    /// `None` once closed.
    stream: Option<UnixStream>,
    reader: FrameReader,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    /// Spawns the binary with its end of the link at descriptor 3.
    pub(crate) fn spawn() -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        // A shell moves the descriptor into place, which Rust could only do with unsafe code.
        let child = Command::new("/bin/sh")
            .args(["-c", "exec \"$0\" serve --link-fd 3 3<&0 </dev/null"])
            .arg(env!("CARGO_BIN_EXE_strata-worker"))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, stream: Some(ours), reader: FrameReader::default() }
    }

    /// A worker that has the model and is ready.
    pub(crate) fn ready(model: &str) -> Self {
        let mut peer = Self::spawn();
        peer.send(ToWorker::Start(start(model)));
        peer.await_ready();
        peer
    }

    /// Receives `Loading`s that rise and the `Ready` after them.
    pub(crate) fn await_ready(&mut self) -> Ready {
        let mut last = None;
        loop {
            match self.receive() {
                FromWorker::Loading { done_bytes, total_bytes } => {
                    assert!(last < Some(done_bytes) && done_bytes <= total_bytes);
                    last = Some(done_bytes);
                }
                FromWorker::Ready(ready) => return *ready,
                other => panic!("{other:?} before Ready"),
            }
        }
    }

    pub(crate) fn send(&mut self, body: ToWorker) {
        let mut bytes = Vec::new();
        frame::write(&Message { incarnation: INCARNATION, body }, &mut bytes).unwrap();
        let stream = self.stream.as_mut().expect("the link is open");
        // A worker that is about to die may have closed its end; its exit is what a test reads.
        let _ = stream.write_all(&bytes);
    }

    pub(crate) fn receive(&mut self) -> FromWorker {
        let mut bytes = [0; 4096];
        loop {
            if let Some(message) = self.reader.next_message::<Message<FromWorker>>().unwrap() {
                assert_eq!(message.incarnation, INCARNATION);
                return message.body;
            }
            let stream = self.stream.as_mut().expect("the link is open");
            let length = stream.read(&mut bytes).expect("a frame within the time allowed");
            assert!(length > 0, "the worker closed the link: {:?}", self.end());
            self.reader.extend(&bytes[..length]);
        }
    }

    pub(crate) fn close(&mut self) {
        self.stream = None;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits until the signal handlers of a serving worker are in place.
    pub(crate) fn await_handlers(&self) {
        let path = format!("/proc/{}/status", self.child.id());
        wait_for("signal handlers", || {
            let status = std::fs::read_to_string(&path).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            let mask = u64::from_str_radix(caught.trim(), 16).unwrap();
            mask & (1 << (Signal::SIGTERM as u64 - 1)) != 0
        });
    }

    /// The exit status and what was said on stderr.
    pub(crate) fn end(&mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut said).unwrap();
        }
        (self.child.wait().unwrap(), said)
    }

    /// Receives until the session has ended, acknowledging everything. Holds the worker to the
    /// laws of the protocol.
    pub(crate) fn collect(&mut self, submit: &Submit) -> (Vec<TokenId>, EndReason) {
        let mut tokens = Vec::new();
        let reason = loop {
            if let Some(reason) = self.take(submit, &mut tokens) {
                break reason;
            }
        };
        (tokens, reason)
    }

    /// Takes one frame of a session that is alone in the worker.
    pub(crate) fn take(&mut self, submit: &Submit, tokens: &mut Vec<TokenId>) -> Option<EndReason> {
        let next = Position(0).plus(submit.tokens.len() + tokens.len());
        match self.receive() {
            FromWorker::Progress { session, position } => {
                assert_eq!(session, submit.session);
                assert!(tokens.is_empty() && position <= next, "prefill is over");
            }
            FromWorker::Tokens { session, position, tokens: new } => {
                assert_eq!((session, position), (submit.session, next), "no gap");
                tokens.extend(new.iter().map(|sampled| sampled.token));
                let position = Position(next.0 - 1).plus(new.len());
                self.send(ToWorker::Ack { session, position });
            }
            FromWorker::Ended { session, length, reason } => {
                assert_eq!((session, length), (submit.session, next));
                return Some(reason);
            }
            other => panic!("{other:?}"),
        }
        None
    }
}

/// Waits for a condition that only polling can see.
pub(crate) fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "no {what} within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// How the process ended, as a test wants to compare it.
pub(crate) fn code_or_signal(status: ExitStatus) -> (Option<i32>, Option<i32>) {
    (status.code(), status.signal())
}

pub(crate) fn start(model: &str) -> Start {
    Start {
        protocol_version: PROTOCOL_VERSION,
        model: model.into(),
        header_digest: None,
        context_len: 1024,
        slots: 4,
        prefill_chunk: 128,
        threads: 2,
    }
}

/// A session over a prompt that is a pure function of `seed`.
pub(crate) fn submission(session: u64, seed: u32, n_tokens: u32, emit: u32) -> Submit {
    Submit {
        session: SessionId(session),
        tokens: (0..n_tokens)
            .map(|index| TokenId(1000 + (seed * 97 + index * 31) % 9000))
            .collect(),
        prompt_len: n_tokens,
        length_max: Position(n_tokens + emit),
        end_tokens: vec![],
        sampling: shared::protocol::Sampling::default(),
    }
}

pub(crate) fn submit(submit: &Submit) -> ToWorker {
    ToWorker::Submit(Box::new(submit.clone()))
}
