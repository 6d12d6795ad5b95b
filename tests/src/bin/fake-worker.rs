//! Speaks the worker's side of the link without a model: deterministic tokens at any pace, and on
//! cue every fault a worker may have. `strata_tests::fake` has the script's words.
//!
//! The supervisor cannot tell it from the real one: it honours acknowledgements and run-ahead,
//! `End`, `Ping` and `Leave`, refuses what cannot be computed, and leaves when the link closes.
//!
//! The environment variable `STRATA_FAKE` holds the script. Arguments are not looked at, so that
//! it can be started as the real worker is (`strata-worker serve`).

use std::fs::File;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use nix::sys::socket::{MsgFlags, recv, send};
use shared::fault::{NonFinite, NonFinitePlace, WorkerExit};
use shared::frame::{self, FrameReader};
use shared::ids::{Incarnation, Position, SessionId, TokenId};
use shared::limits::RUN_AHEAD_MAX;
use shared::protocol::{
    EndReason, FromWorker, LINK_FD, Logprobs, Message, PROTOCOL_VERSION, Ready, Sampled, Start,
    Submit, ToWorker,
};
use strata_tests::fake::{Death, Directive, SCRIPT_VARIABLE, Script, Trouble, draw};

/// Steps in which loading is reported.
const LOAD_STEPS: u32 = 10;

/// Weight bytes the fake pretends to load.
const WEIGHT_BYTES: u64 = 1_000_000;

/// A session in a slot.
struct Sequence {
    submit: Submit,
    /// Next position to prefill; the session decodes once it has reached the submitted length.
    prefilled: usize,
    submitted: usize,
    acknowledged: Position,
}

struct FakeWorker {
    inbox: Receiver<Message<ToWorker>>,
    incarnation: Incarnation,
    directives: Vec<Directive>,
    start: Start,
    vocab_size: u32,
    sequences: Vec<Sequence>,
}

fn main() {
    let script = std::env::var(SCRIPT_VARIABLE).unwrap_or_default();
    let script = Script::parse(&script)
        .unwrap_or_else(|why| leave(WorkerExit::Usage, &format!("{SCRIPT_VARIABLE}: {why}")));
    let inbox = spawn_reader();
    let Ok(Message { incarnation, body: ToWorker::Start(start) }) = inbox.recv() else {
        leave(WorkerExit::Protocol, "the first message was not Start");
    };
    if start.protocol_version != PROTOCOL_VERSION {
        leave(WorkerExit::Protocol, "another protocol version");
    }
    let directives = script.for_life(incarnation.0);
    let (vocab_size, model_context) = read_sizes(Path::new(&start.model))
        .unwrap_or_else(|why| leave(WorkerExit::Model, &format!("{}: {why}", start.model)));
    let context_len = if start.context_len == 0 { model_context } else { start.context_len };
    let start = Start { context_len, ..start };
    let sequences = Vec::new();
    let mut worker = FakeWorker { inbox, incarnation, directives, start, vocab_size, sequences };
    worker.load();
    worker.serve();
}

/// Vocabulary size and context length as the weight file has them.
fn read_sizes(model: &Path) -> Result<(u32, u32), String> {
    let mut header = Vec::new();
    let file = File::open(model).map_err(|error| error.to_string())?;
    file.take(64 << 20).read_to_end(&mut header).map_err(|error| error.to_string())?;
    strata_tests::tiny_model::sizes(&header)
}

/// Reads the link on a thread of its own, so that pacing can wait for messages and time at once.
fn spawn_reader() -> Receiver<Message<ToWorker>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut reader = FrameReader::default();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match recv(LINK_FD as RawFd, &mut buffer, MsgFlags::empty()) {
                Ok(0) => return,
                Ok(count) => reader.extend(&buffer[..count]),
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return,
            }
            loop {
                match reader.next_message() {
                    Ok(None) => break,
                    Ok(Some(message)) => {
                        if sender.send(message).is_err() {
                            return;
                        }
                    }
                    Err(error) => leave(WorkerExit::Protocol, &error.to_string()),
                }
            }
        }
    });
    receiver
}

fn leave(exit: WorkerExit, detail: &str) -> ! {
    if exit != WorkerExit::Clean {
        let name = serde_json::to_string(&exit).expect("a unit variant");
        eprintln!(
            "strata-worker epitaph: incarnation=0 exit={}({}) detail=\"{detail}\"",
            name.trim_matches('"'),
            exit.code()
        );
    }
    std::process::exit(i32::from(exit.code()))
}

fn die(death: Death) -> ! {
    match death {
        Death::Exit(code) => std::process::exit(code),
        Death::Signal(number) => loop {
            let signal = Signal::try_from(number).expect("the script was checked");
            // The first SIGSEGV or SIGBUS only takes the standard library's handler away.
            raise(signal).expect("a process may signal itself");
        },
    }
}

/// Neither computes nor answers, until it is killed or its supervisor is gone.
fn stall() -> ! {
    loop {
        thread::park();
    }
}

fn send_bytes(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match send(LINK_FD as RawFd, bytes, MsgFlags::MSG_NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => leave(WorkerExit::SupervisorGone, &error.to_string()),
        }
    }
}

impl FakeWorker {
    fn has(&self, directive: Directive) -> bool {
        self.directives.contains(&directive)
    }

    fn find<T>(&self, pick: impl Fn(&Directive) -> Option<T>) -> Option<T> {
        self.directives.iter().find_map(pick)
    }

    fn frame(&self, incarnation: Incarnation, body: FromWorker) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::write(&Message { incarnation, body }, &mut bytes).expect("small messages fit");
        debug_assert!(incarnation.0 >= self.incarnation.0);
        bytes
    }

    fn send(&self, body: FromWorker) {
        send_bytes(&self.frame(self.incarnation, body));
    }

    fn load(&mut self) {
        let total = self.find(|directive| match directive {
            Directive::Load(time) => Some(*time),
            _ => None,
        });
        let total = total.unwrap_or_default();
        for step in 1..=LOAD_STEPS {
            if step > 1 && self.has(Directive::LoadStall) {
                stall();
            }
            let failing = self.find(|directive| match directive {
                Directive::FailLoad(death) => Some(*death),
                _ => None,
            });
            if let Some(death) = failing.filter(|_| step > LOAD_STEPS / 2) {
                die(death);
            }
            self.wait(total / LOAD_STEPS);
            let done_bytes = WEIGHT_BYTES * u64::from(step) / u64::from(LOAD_STEPS);
            self.send(FromWorker::Loading { done_bytes, total_bytes: WEIGHT_BYTES });
        }
        self.send(FromWorker::Ready(Box::new(Ready {
            arch: "llama".to_owned(),
            context_len: self.start.context_len,
            vocab_size: self.vocab_size,
            threads: self.start.threads.max(1),
            instruction_set: "fake".to_owned(),
            weight_bytes: WEIGHT_BYTES,
            parameters: WEIGHT_BYTES,
            fingerprint: [0; 32],
        })));
    }

    /// Handles messages until the time is over.
    fn wait(&mut self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) => self.handle(message),
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => {
                    leave(WorkerExit::SupervisorGone, "the link closed")
                }
            }
        }
    }

    fn serve(&mut self) -> ! {
        let (chunk_time, token_time) = self.paces();
        loop {
            if self.sequences.iter().all(|sequence| !sequence.has_work()) {
                match self.inbox.recv() {
                    Ok(message) => self.handle(message),
                    Err(_) => leave(WorkerExit::SupervisorGone, "the link closed"),
                }
            }
            self.handle_waiting();
            let mut prefilled = false;
            for index in 0..self.sequences.len() {
                prefilled |= self.prefill(index);
            }
            self.wait(if prefilled { chunk_time } else { token_time });
            self.decode();
        }
    }

    fn handle_waiting(&mut self) {
        loop {
            match self.inbox.try_recv() {
                Ok(message) => self.handle(message),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    leave(WorkerExit::SupervisorGone, "the link closed")
                }
            }
        }
    }

    fn paces(&self) -> (Duration, Duration) {
        let chunk = self.find(|directive| match directive {
            Directive::Chunk(time) => Some(*time),
            _ => None,
        });
        let token = self.find(|directive| match directive {
            Directive::Token(time) => Some(*time),
            _ => None,
        });
        (chunk.unwrap_or_default(), token.unwrap_or_default())
    }

    fn handle(&mut self, message: Message<ToWorker>) {
        if message.incarnation != self.incarnation {
            leave(WorkerExit::Protocol, "a message of another incarnation");
        }
        match message.body {
            ToWorker::Start(_) => leave(WorkerExit::Protocol, "a second Start"),
            ToWorker::Submit(submit) => self.submit(*submit),
            ToWorker::Ack { session, position } => {
                if let Some(sequence) = self.find_sequence(session) {
                    sequence.acknowledged = sequence.acknowledged.max(position);
                }
            }
            ToWorker::End { session, keep } => {
                if self.has(Directive::IgnoreEnd) {
                    return;
                }
                if let Some(sequence) = self.find_sequence(session) {
                    let length = u32::try_from(sequence.submit.tokens.len());
                    let length = Position(length.expect("bounded by the context"));
                    self.end(session, length.min(keep), EndReason::Told);
                }
            }
            ToWorker::Ping(number) if self.has(Directive::NoPong) => {
                debug_assert!(number < u64::MAX);
            }
            ToWorker::Ping(number) => self.send(FromWorker::Pong(number)),
            ToWorker::Leave if self.has(Directive::IgnoreLeave) => {}
            ToWorker::Leave => leave(WorkerExit::Clean, ""),
        }
    }

    fn find_sequence(&mut self, session: SessionId) -> Option<&mut Sequence> {
        self.sequences.iter_mut().find(|sequence| sequence.submit.session == session)
    }

    fn submit(&mut self, submit: Submit) {
        let count = u32::try_from(submit.tokens.len()).expect("frames are smaller");
        let refusal = if self.has(Directive::Refuse) {
            Some("told to refuse")
        } else if self.find_sequence(submit.session).is_some() {
            Some("the session runs already")
        } else if self.sequences.len() >= self.start.slots as usize {
            Some("no free slot")
        } else if count == 0 || submit.prompt_len > count || submit.prompt_len == 0 {
            Some("no prompt")
        } else if count >= submit.length_max.0 || submit.length_max.0 > self.start.context_len {
            Some("no room in the context")
        } else if submit.tokens.iter().any(|token| token.0 >= self.vocab_size) {
            Some("a token outside the vocabulary")
        } else {
            None
        };
        if let Some(why) = refusal {
            let reason = EndReason::Refused(why.to_owned());
            self.send(FromWorker::Ended {
                session: submit.session,
                length: Position(count),
                reason,
            });
            return;
        }
        self.sequences.push(Sequence {
            prefilled: 0,
            submitted: submit.tokens.len(),
            acknowledged: Position(count - 1),
            submit,
        });
    }

    fn end(&mut self, session: SessionId, length: Position, reason: EndReason) {
        self.sequences.retain(|sequence| sequence.submit.session != session);
        self.send(FromWorker::Ended { session, length, reason });
    }

    /// One chunk of a sequence's prompt; whether there was one.
    fn prefill(&mut self, index: usize) -> bool {
        let chunk = self.start.prefill_chunk as usize;
        let sequence = &mut self.sequences[index];
        if sequence.prefilled == sequence.submitted {
            return false;
        }
        sequence.prefilled = (sequence.prefilled + chunk).min(sequence.submitted);
        let session = sequence.submit.session;
        let position = Position::default().plus(sequence.prefilled);
        self.send(FromWorker::Progress { session, position });
        let dying = self.find(|directive| match directive {
            Directive::DieInPrefill(death) => Some(*death),
            _ => None,
        });
        if let Some(death) = dying {
            die(death);
        }
        true
    }

    /// One token for every sequence that may have one.
    fn decode(&mut self) {
        let overrun = self.has(Directive::Overrun);
        let ready: Vec<SessionId> = self
            .sequences
            .iter()
            .filter(|sequence| sequence.may_decode() || (overrun && sequence.is_prefilled()))
            .map(|sequence| sequence.submit.session)
            .collect();
        for session in ready {
            self.decode_one(session);
        }
    }

    fn decode_one(&mut self, session: SessionId) {
        let end_every = self.find(|directive| match directive {
            Directive::EndEvery(every) => Some(*every),
            _ => None,
        });
        let Some(sequence) = self.find_sequence(session) else { return };
        let submit = &mut sequence.submit;
        let position = Position::default().plus(submit.tokens.len());
        let token =
            draw(&submit.tokens, &submit.sampling, &submit.end_tokens, end_every.unwrap_or(64));
        submit.tokens.push(token);
        let sampled = vec![Sampled { token, logprobs: logprobs(token, submit) }];
        let is_end_token = submit.end_tokens.contains(&token);
        let length = position.next();
        let is_full = length >= submit.length_max;
        let troubles: Vec<Trouble> = self
            .directives
            .iter()
            .filter_map(|directive| match directive {
                Directive::At(at, trouble) if *at == position => Some(*trouble),
                _ => None,
            })
            .collect();
        let mut skip = false;
        for trouble in troubles {
            skip |= self.make_trouble(trouble, session, position, &sampled).is_break();
        }
        if !skip {
            self.send(FromWorker::Tokens { session, position, tokens: sampled });
        }
        if is_end_token || is_full {
            let dying = self.find(|directive| match directive {
                Directive::DieAtEnd(death) => Some(*death),
                _ => None,
            });
            if let Some(death) = dying {
                die(death);
            }
            let reason = if is_end_token { EndReason::EndToken } else { EndReason::Length };
            self.end(session, length, reason);
        }
    }

    /// Breaks if the ordinary token must not be sent.
    fn make_trouble(
        &self,
        trouble: Trouble,
        session: SessionId,
        position: Position,
        tokens: &[Sampled],
    ) -> ControlFlow<()> {
        let tokens = tokens.to_vec();
        let ordinary = FromWorker::Tokens { session, position, tokens: tokens.clone() };
        match trouble {
            Trouble::Die(death) => die(death),
            Trouble::Stall => stall(),
            Trouble::NonFinite => {
                let place = NonFinitePlace::Logits;
                self.send(FromWorker::NonFinite(NonFinite { session, position, place }));
                leave(WorkerExit::NonFinite, &format!("session={session} position={position}"));
            }
            Trouble::WrongIncarnation => {
                send_bytes(&self.frame(self.incarnation.next(), ordinary));
            }
            Trouble::Gap => return ControlFlow::Break(()),
            Trouble::Repeat => self.send(ordinary),
            Trouble::TornFrame => {
                let bytes = self.frame(self.incarnation, ordinary);
                send_bytes(&bytes[..bytes.len() / 2]);
                die(Death::Signal(Signal::SIGKILL as i32));
            }
            Trouble::Garbage => {
                let mut bytes = 64_u32.to_le_bytes().to_vec();
                bytes.extend_from_slice(&[0xff; 64]);
                send_bytes(&bytes);
            }
            Trouble::HugeFrame => send_bytes(&u32::MAX.to_le_bytes()),
            Trouble::UnknownSession => {
                let session = SessionId(u64::MAX);
                self.send(FromWorker::Tokens { session, position, tokens });
            }
            Trouble::BadToken => {
                let bad = Sampled { token: TokenId(self.vocab_size + 5), logprobs: None };
                self.send(FromWorker::Tokens { session, position, tokens: vec![bad] });
                return ControlFlow::Break(());
            }
            Trouble::Flood => {
                // A supervisor that reads no further would block this write for ever.
                let _ = std::io::stderr().write_all(&vec![b'x'; 1 << 20]);
            }
        }
        ControlFlow::Continue(())
    }
}

impl Sequence {
    fn is_prefilled(&self) -> bool {
        self.prefilled == self.submitted
    }

    fn may_decode(&self) -> bool {
        let position = u64::try_from(self.submit.tokens.len()).expect("usize is 64 bits here");
        self.is_prefilled() && position <= u64::from(self.acknowledged.0) + u64::from(RUN_AHEAD_MAX)
    }

    fn has_work(&self) -> bool {
        !self.is_prefilled() || self.may_decode()
    }
}

/// Made-up numbers of the right form: the chosen token first, then its neighbours.
fn logprobs(token: TokenId, submit: &Submit) -> Option<Box<Logprobs>> {
    let count = submit.sampling.logprobs?;
    let rank = |index: u32| -0.25 - f32::from(u8::try_from(index).unwrap_or(u8::MAX));
    let rival = |index: u32| TokenId((token.0 + index) % 128);
    let top = (0..count).map(|index| (rival(index), rank(index))).collect();
    Some(Box::new(Logprobs { chosen: rank(0), top }))
}
