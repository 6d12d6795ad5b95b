//! The loop over a real socket pair, with an engine that only pretends to compute.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

use shared::fault::{NonFinite, NonFinitePlace, WorkerExit};
use shared::frame::{self, FrameReader};
use shared::ids::{Incarnation, Position, SessionId, TokenId};
use shared::limits::RUN_AHEAD_MAX;
use shared::protocol::{
    EndReason, FromWorker, Message, PROTOCOL_VERSION, Sampling, Start, Submit, ToWorker,
};

use super::compute::Compute;
use super::{Fate, run};
use crate::engine::{EngineError, LogitsRow, LogitsWanted, ModelInfo, Part, SlotIndex};

const VOCAB_SIZE: u32 = 64;
const PATIENCE: Duration = Duration::from_secs(30);

/// What the engine does beside pretending.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trick {
    None,
    /// A pass with this token has layers without end: only a break ends it.
    Endless(TokenId),
    /// The row of this position is not finite.
    NonFiniteAt(Position),
}

struct Fake {
    info: ModelInfo,
    /// Tokens in each slot's pretended KV cache.
    slots: Vec<Vec<TokenId>>,
    trick: Trick,
}

impl Fake {
    fn new(start: &Start, trick: Trick) -> Self {
        let info = ModelInfo {
            arch: "fake".into(),
            name: String::new(),
            context_len: 256,
            vocab_size: VOCAB_SIZE,
            threads: 1,
            instruction_set: "none".into(),
            weight_bytes: 0,
            parameters: 0,
            fingerprint: [0; 32],
            bos: None,
            warnings: Vec::new(),
        };
        Self { info, slots: vec![Vec::new(); start.slots as usize], trick }
    }
}

/// Logits that depend on the whole sequence, as a model's do. Tokens from 60 on are not drawn.
fn logits(tokens: &[TokenId]) -> Vec<f32> {
    let mut state = 17_u64;
    for token in tokens {
        state = (state ^ u64::from(token.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    (0..u64::from(VOCAB_SIZE))
        .map(|index| {
            let bits = (state ^ index).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 48;
            if index < 60 { f32::from(u16::try_from(bits).unwrap()) / 8192.0 } else { -100.0 }
        })
        .collect()
}

impl Compute for Fake {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn forward(
        &mut self,
        parts: &[Part<'_>],
        hook: &mut dyn FnMut() -> ControlFlow<()>,
        each_row: &mut dyn FnMut(LogitsRow<'_>),
    ) -> Result<ControlFlow<()>, EngineError> {
        let has = |token| parts.iter().any(|part| part.tokens.contains(&token));
        loop {
            if hook().is_break() {
                return Ok(ControlFlow::Break(()));
            }
            match self.trick {
                Trick::Endless(token) if has(token) => {}
                _ => break,
            }
        }
        for (index, part) in parts.iter().enumerate() {
            let slot = &mut self.slots[part.slot.0 as usize];
            assert_eq!(slot.len(), part.start.index(), "a part goes on where its slot ended");
            slot.extend_from_slice(part.tokens);
            let position = Position(u32::try_from(slot.len()).unwrap() - 1);
            if self.trick == Trick::NonFiniteAt(position) {
                return Err(EngineError::NonFinite { part: index, position, index: 5 });
            }
            if part.logits == LogitsWanted::Last {
                each_row(LogitsRow { part: index, position, values: &logits(slot) });
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn truncate(&mut self, slot: SlotIndex, length: Position) {
        self.slots[slot.0 as usize].truncate(length.index());
    }
}

/// The supervisor's end, played by a test.
struct Peer {
    stream: UnixStream,
    reader: FrameReader,
    worker: JoinHandle<Fate>,
}

impl Peer {
    fn new(trick: Trick) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        let open = move |start: &Start, progress: &mut dyn FnMut(u64, u64)| {
            progress(0, 10);
            progress(10, 10);
            Ok(Fake::new(start, trick))
        };
        let worker = std::thread::spawn(move || run(theirs, open));
        Self { stream: ours, reader: FrameReader::default(), worker }
    }

    fn started(trick: Trick) -> Self {
        let mut peer = Self::new(trick);
        peer.send(ToWorker::Start(start()));
        loop {
            match peer.receive() {
                FromWorker::Loading { total_bytes: 10, .. } => {}
                FromWorker::Ready(ready) => {
                    assert_eq!(ready.vocab_size, VOCAB_SIZE);
                    return peer;
                }
                other => panic!("{other:?} before Ready"),
            }
        }
    }

    fn send(&mut self, body: ToWorker) {
        let mut bytes = Vec::new();
        frame::write(&Message { incarnation: Incarnation(3), body }, &mut bytes).unwrap();
        // A worker that has just met its fate may have closed its end.
        let _ = self.stream.write_all(&bytes);
    }

    fn receive(&mut self) -> FromWorker {
        let mut bytes = [0; 4096];
        loop {
            if let Some(message) = self.reader.next_message::<Message<FromWorker>>().unwrap() {
                assert_eq!(message.incarnation, Incarnation(3));
                return message.body;
            }
            let length = self.stream.read(&mut bytes).expect("a frame within the time allowed");
            assert!(length > 0, "the worker closed the link");
            self.reader.extend(&bytes[..length]);
        }
    }

    /// Receives until the session has ended; acknowledges everything.
    fn collect(&mut self, id: SessionId, mut next: Position) -> (Vec<TokenId>, EndReason) {
        let mut all = Vec::new();
        loop {
            match self.receive() {
                FromWorker::Tokens { session, position, tokens } if session == id => {
                    assert_eq!(position, next, "no gap");
                    next = next.plus(tokens.len());
                    all.extend(tokens.iter().map(|sampled| sampled.token));
                    self.send(ToWorker::Ack { session, position: Position(next.0 - 1) });
                }
                FromWorker::Ended { session, length, reason } if session == id => {
                    assert_eq!(length, next);
                    return (all, reason);
                }
                _ => {}
            }
        }
    }

    /// Closes nothing, waits for the worker's end.
    fn fate(self) -> (UnixStream, Fate) {
        (self.stream, self.worker.join().unwrap())
    }

    fn leave(mut self) {
        self.send(ToWorker::Leave);
        assert_eq!(self.fate().1.exit, WorkerExit::Clean);
    }
}

fn start() -> Start {
    Start {
        protocol_version: PROTOCOL_VERSION,
        model: "none".into(),
        header_digest: None,
        context_len: 256,
        slots: 2,
        prefill_chunk: 32,
        threads: 1,
    }
}

fn submission(session: u64, tokens: &[u32]) -> Submit {
    Submit {
        session: SessionId(session),
        tokens: tokens.iter().copied().map(TokenId).collect(),
        prompt_len: u32::try_from(tokens.len()).unwrap(),
        length_max: Position(100),
        end_tokens: vec![],
        sampling: Sampling::default(),
    }
}

fn submit(submit: Submit) -> ToWorker {
    ToWorker::Submit(Box::new(submit))
}

#[test]
fn the_worker_runs_ahead_as_far_as_allowed_then_waits() {
    let mut peer = Peer::started(Trick::None);
    peer.send(submit(submission(1, &[1, 2, 3])));
    let mut next = 3;
    while next < 3 + RUN_AHEAD_MAX {
        if let FromWorker::Tokens { position, tokens, .. } = peer.receive() {
            assert_eq!(position, Position(next));
            next += u32::try_from(tokens.len()).unwrap();
        }
    }
    assert_eq!(next, 3 + RUN_AHEAD_MAX);
    peer.send(ToWorker::Ping(8));
    assert_eq!(peer.receive(), FromWorker::Pong(8), "no token beyond the bound");
    peer.send(ToWorker::Ack { session: SessionId(1), position: Position(3) });
    let FromWorker::Tokens { position, tokens, .. } = peer.receive() else { panic!() };
    assert_eq!((position, tokens.len()), (Position(next), 1));
    peer.leave();
}

#[test]
fn an_end_keeps_exactly_what_it_says_and_is_answered_once() {
    let mut peer = Peer::started(Trick::None);
    peer.send(submit(submission(1, &[1, 2, 3])));
    while !matches!(peer.receive(), FromWorker::Tokens { position: Position(9), .. }) {}
    peer.send(ToWorker::End { session: SessionId(1), keep: Position(7) });
    peer.send(ToWorker::End { session: SessionId(1), keep: Position(7) });
    peer.send(ToWorker::End { session: SessionId(5), keep: Position(7) });
    peer.send(ToWorker::Ping(1));
    let mut ends = Vec::new();
    loop {
        match peer.receive() {
            FromWorker::Ended { length, reason, .. } => ends.push((length, reason)),
            FromWorker::Pong(1) => break,
            _ => {}
        }
    }
    if ends.is_empty() {
        let FromWorker::Ended { length, reason, .. } = peer.receive() else { panic!() };
        ends.push((length, reason));
    }
    assert_eq!(ends, [(Position(7), EndReason::Told)]);
    peer.leave();
}

#[test]
fn a_resubmission_goes_on_where_the_last_life_stopped() {
    let samplings = [
        Sampling::default(),
        Sampling { seed: 11, temperature: 0.8, top_k: 20, top_p: 0.95, ..Sampling::default() },
        Sampling {
            seed: 12,
            temperature: 1.0,
            repeat_penalty: 1.3,
            frequency_penalty: 0.5,
            presence_penalty: 0.5,
            ..Sampling::default()
        },
    ];
    for sampling in samplings {
        let base = Submit { sampling, ..submission(1, &[1, 2, 3]) };
        let mut peer = Peer::started(Trick::None);
        peer.send(submit(base.clone()));
        let (whole, reason) = peer.collect(SessionId(1), Position(3));
        assert_eq!((whole.len(), reason), (97, EndReason::Length));
        peer.leave();
        for cut in [1, 17, 64, 96] {
            let mut again = base.clone();
            again.tokens.extend_from_slice(&whole[..cut]);
            let mut peer = Peer::started(Trick::None);
            peer.send(submit(again));
            let (rest, _) = peer.collect(SessionId(1), Position(3).plus(cut));
            assert_eq!(rest, whole[cut..], "cut at {cut}");
            peer.leave();
        }
    }
}

#[test]
fn a_ping_is_answered_and_a_cancel_obeyed_in_the_middle_of_a_pass() {
    let mut peer = Peer::started(Trick::Endless(TokenId(60)));
    peer.send(submit(submission(1, &[1, 60, 2])));
    peer.send(ToWorker::Ping(1));
    while peer.receive() != FromWorker::Pong(1) {}
    let progress = FromWorker::Progress { session: SessionId(1), position: Position(0) };
    assert_eq!(peer.receive(), progress, "layers were completed, so the pass goes on");
    peer.send(submit(submission(2, &[1, 2])));
    peer.send(ToWorker::End { session: SessionId(1), keep: Position(3) });
    loop {
        match peer.receive() {
            FromWorker::Progress { .. } => {}
            FromWorker::Ended { session: SessionId(1), reason: EndReason::Told, .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(peer.collect(SessionId(2), Position(2)).1, EndReason::Length);
    peer.leave();
}

#[test]
fn an_orphan_notices_within_a_layer() {
    let mut peer = Peer::started(Trick::Endless(TokenId(60)));
    peer.send(submit(submission(1, &[1, 60, 2])));
    peer.send(ToWorker::Ping(1));
    while peer.receive() != FromWorker::Pong(1) {}
    drop(peer.stream);
    assert_eq!(peer.worker.join().unwrap().exit, WorkerExit::SupervisorGone);
}

#[test]
fn a_non_finite_row_is_reported_and_nothing_is_sampled_from_it() {
    let mut peer = Peer::started(Trick::NonFiniteAt(Position(20)));
    peer.send(submit(submission(1, &[1, 2, 3])));
    let mut next = 3;
    let report = loop {
        match peer.receive() {
            FromWorker::Tokens { position, .. } => {
                next = position.0 + 1;
                peer.send(ToWorker::Ack { session: SessionId(1), position });
            }
            FromWorker::NonFinite(report) => break report,
            _ => {}
        }
    };
    assert_eq!(next, 21, "the row of position 20 scores the token at 21");
    let (session, position, place) = (SessionId(1), Position(20), NonFinitePlace::Logits);
    assert_eq!(report, NonFinite { session, position, place });
    let (_stream, fate) = peer.fate();
    assert_eq!(fate.exit, WorkerExit::NonFinite);
    assert_eq!(fate.detail, "session=1 position=20 place=logits index=5");
}

#[test]
fn nonsense_ends_the_life_with_the_protocol_exit() {
    let version = Start { protocol_version: PROTOCOL_VERSION + 1, ..start() };
    let slots = Start { slots: 0, ..start() };
    let ack = ToWorker::Ack { session: SessionId(1), position: Position(90) };
    let cases: [(&[ToWorker], &str); 5] = [
        (&[ToWorker::Start(version)], "protocol version"),
        (&[ToWorker::Start(slots)], "0 slots"),
        (&[ToWorker::Ping(1)], "first frame"),
        (&[ToWorker::Start(start()), ToWorker::Start(start())], "twice"),
        (&[ToWorker::Start(start()), submit(submission(1, &[1])), ack], "acknowledgement"),
    ];
    for (messages, expected) in cases {
        let mut peer = Peer::new(Trick::None);
        for message in messages {
            peer.send(message.clone());
        }
        let (_stream, fate) = peer.fate();
        assert_eq!(fate.exit, WorkerExit::Protocol);
        assert!(fate.detail.contains(expected), "{}", fate.detail);
    }
}
