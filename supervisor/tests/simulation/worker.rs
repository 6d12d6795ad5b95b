//! A worker in this process: speaks the real protocol, computes a small function, and fails as it
//! is told. It checks the supervisor's half of the protocol as it goes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shared::fault::{NonFinite, NonFinitePlace, WorkerExit};
use shared::frame::{self, FrameReader};
use shared::ids::{Incarnation, Position, SessionId, TokenId};
use shared::limits::RUN_AHEAD_MAX;
use shared::protocol::{EndReason, FromWorker, Message, Ready, Sampled, Submit, ToWorker};
use strata_supervisor::worker::exit::Exit;
use strata_supervisor::worker::link::Transport;
use strata_supervisor::worker::process::{Kill, Launch, Report, Reports};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::Notify;

use super::model::{self, POISON};
use super::random::Random;

/// Context length of every life.
pub(crate) const CONTEXT_LEN: u32 = 400;
/// Slots of every life.
pub(crate) const SLOTS: u32 = 4;
const STEP: Duration = Duration::from_millis(10);
/// From the end of a link to the end of its process, where that takes long.
const REAPING: Duration = Duration::from_millis(200);
const PREFILL_CHUNK: usize = 8;

/// What goes wrong in a life, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// There is no program.
    NotLaunched,
    /// The process dies while it loads.
    DieLoading,
    /// It stops reading weights.
    StallLoading,
    /// It cannot load and says why.
    ExitLoading(WorkerExit),
    /// It dies at the n-th progress of a prefill.
    DieAtProgress(u32),
    /// It stops there.
    StallAtProgress(u32),
    /// At its n-th token, it …
    AtToken(u32, AtToken),
    /// It loads another weight file than the lives before.
    OtherWeights,
    /// It never answers a ping.
    Deaf,
    /// From its n-th token on, it gives nothing more to the session that is first then.
    Forget(u32),
    /// It ends nothing that it is told to end.
    KeepEnded,
}

/// See [`Fault::AtToken`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtToken {
    /// … dies after it sent it.
    Die,
    /// … dies, and is reaped a while after its link broke.
    DieSlowly,
    /// … stops.
    Stall,
    /// … exits with a code.
    Exit(WorkerExit),
    /// … finds a value that is not finite.
    NonFinite,
    /// … speaks for another life.
    WrongIncarnation,
    /// … leaves a position out.
    Gap,
    /// … sends it twice.
    Repeat,
    /// … sends one that is not in the vocabulary.
    Alien,
    /// … sends none.
    Empty,
    /// … ends a session that goes on.
    EndEarly,
    /// … ends a session that is over.
    EndUnknown,
    /// … sends what is no frame.
    Garbage,
    /// … closes the link, and stays.
    CloseLink,
}

/// What the lives have in common.
#[derive(Debug, Clone, Default)]
pub(crate) struct World(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Faults of the next lives; then none.
    script: VecDeque<Fault>,
    /// Then random ones, this many more.
    random: Option<(Random, u32)>,
    launched: u32,
    exited: u32,
    /// Time per computed step.
    step: Option<Duration>,
    poison: Option<Fault>,
    submits: Vec<SessionId>,
    sent: Vec<std::time::Instant>,
}

impl World {
    /// Lives with these faults, and then without.
    pub(crate) fn scripted(script: impl IntoIterator<Item = Fault>) -> Self {
        let world = Self::default();
        world.0.lock().unwrap().script.extend(script);
        world
    }

    /// This many lives with random faults, and then without.
    pub(crate) fn random(random: Random, faults: u32) -> Self {
        let world = Self::default();
        world.0.lock().unwrap().random = Some((random, faults));
        world
    }

    /// What a poisonous prompt does to the life that reads it.
    pub(crate) fn set_poison(&self, fault: Fault) {
        self.0.lock().unwrap().poison = Some(fault);
    }

    /// How long a step of computation takes.
    pub(crate) fn set_step(&self, step: Duration) {
        self.0.lock().unwrap().step = Some(step);
    }

    /// Adds a life's fault to the script.
    pub(crate) fn add(&self, fault: Fault) {
        self.0.lock().unwrap().script.push_back(fault);
    }

    /// Processes that were launched and have not ended.
    pub(crate) fn alive(&self) -> u32 {
        let state = self.0.lock().unwrap();
        state.launched - state.exited
    }

    /// Sessions in the order of their submissions.
    pub(crate) fn submits(&self) -> Vec<SessionId> {
        self.0.lock().unwrap().submits.clone()
    }

    /// When each message of tokens was sent.
    pub(crate) fn sent(&self) -> Vec<std::time::Instant> {
        self.0.lock().unwrap().sent.clone()
    }

    fn next_fault(&self) -> Fault {
        let mut state = self.0.lock().unwrap();
        if let Some(fault) = state.script.pop_front() {
            return fault;
        }
        match &mut state.random {
            Some((random, left)) if *left > 0 => {
                *left -= 1;
                random_fault(random)
            }
            _ => Fault::None,
        }
    }
}

fn random_fault(random: &mut Random) -> Fault {
    let at = random.below(40) + 1;
    let what = match random.below(21) {
        0 => return Fault::NotLaunched,
        1 => return Fault::DieLoading,
        2 => return Fault::StallLoading,
        3 => return Fault::DieAtProgress(at / 2 + 1),
        4 => return Fault::StallAtProgress(at / 2 + 1),
        5 => return Fault::Deaf,
        6 => AtToken::Stall,
        7 => AtToken::Exit(WorkerExit::Panic),
        8 => AtToken::NonFinite,
        9 => AtToken::WrongIncarnation,
        10 => AtToken::Gap,
        11 => AtToken::Repeat,
        12 => AtToken::EndEarly,
        13 => AtToken::Garbage,
        14 => AtToken::CloseLink,
        15 => AtToken::Alien,
        16 => AtToken::DieSlowly,
        _ => AtToken::Die,
    };
    Fault::AtToken(at, what)
}

#[derive(Debug)]
struct Handle(Arc<Notify>);

impl Kill for Handle {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn kill(&self) {
        self.0.notify_one();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Launch for World {
    fn launch(&mut self, incarnation: Incarnation, reports: Reports) {
        let fault = self.next_fault();
        if fault == Fault::NotLaunched {
            reports.send((incarnation, Report::NotLaunched("no program".to_owned()))).unwrap();
            return;
        }
        let killed = Arc::new(Notify::new());
        let (ours, theirs) = tokio::io::duplex(4096);
        let handle = Box::new(Handle(Arc::clone(&killed)));
        let transport = Transport::Memory(theirs);
        reports.send((incarnation, Report::Launched { handle, transport })).unwrap();
        self.0.lock().unwrap().launched += 1;
        let world = self.clone();
        tokio::spawn(async move {
            let life = Life::new(world.clone(), incarnation, fault, ours);
            let exit = tokio::select! {
                biased;
                () = killed.notified() => Exit::Signal("SIGKILL".to_owned()),
                exit = life.live() => exit,
            };
            world.0.lock().unwrap().exited += 1;
            let epitaph = "scripted".to_owned();
            reports.send((incarnation, Report::Exited { exit, epitaph })).ok();
        });
    }
}

struct Sequence {
    submit: Submit,
    tokens: Vec<TokenId>,
    computed: usize,
    logged: usize,
}

struct Life {
    world: World,
    incarnation: Incarnation,
    fault: Fault,
    read: ReadHalf<DuplexStream>,
    write: WriteHalf<DuplexStream>,
    sequences: BTreeMap<SessionId, Sequence>,
    last_ended: Option<SessionId>,
    progresses: u32,
    emitted: u32,
    forgotten: Option<SessionId>,
    is_started: bool,
}

/// Why a life stops computing.
enum Stop {
    Exit(Exit),
    Dying,
    Stall,
}

fn die() -> Stop {
    Stop::Exit(Exit::Signal("SIGSEGV".to_owned()))
}

impl Life {
    fn new(world: World, incarnation: Incarnation, fault: Fault, stream: DuplexStream) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self {
            world,
            incarnation,
            fault,
            read,
            write,
            sequences: BTreeMap::new(),
            last_ended: None,
            progresses: 0,
            emitted: 0,
            forgotten: None,
            is_started: false,
        }
    }

    async fn live(mut self) -> Exit {
        match self.serve().await {
            Err(Stop::Exit(exit)) => exit,
            Err(Stop::Dying) => {
                drop((self.read, self.write));
                tokio::time::sleep(REAPING).await;
                Exit::Signal("SIGSEGV".to_owned())
            }
            Err(Stop::Stall) => std::future::pending().await,
            Ok(never) => never,
        }
    }

    async fn serve(&mut self) -> Result<Exit, Stop> {
        let mut frames = FrameReader::default();
        let mut buffer = [0; 1024];
        loop {
            let step = self.world.0.lock().unwrap().step.unwrap_or(STEP);
            let is_busy = self.sequences.values().any(|one| !one.is_paused());
            tokio::select! {
                biased;
                count = self.read.read(&mut buffer) => match count {
                    Ok(0) | Err(_) => return Ok(Exit::Known(WorkerExit::SupervisorGone)),
                    Ok(count) => frames.extend(&buffer[..count]),
                },
                () = tokio::time::sleep(step), if is_busy => self.compute().await?,
            }
            while let Some(message) = frames.next_message::<Message<ToWorker>>().unwrap() {
                assert_eq!(message.incarnation, self.incarnation);
                if let Some(exit) = self.obey(message.body).await? {
                    return Ok(exit);
                }
            }
        }
    }

    async fn obey(&mut self, message: ToWorker) -> Result<Option<Exit>, Stop> {
        match message {
            ToWorker::Start(start) => {
                assert!(!self.is_started, "`Start` twice");
                assert_eq!(start.slots, SLOTS);
                self.is_started = true;
                self.load().await?;
            }
            ToWorker::Submit(submit) => self.accept(*submit),
            ToWorker::Ack { session, position } => {
                if let Some(sequence) = self.sequences.get_mut(&session) {
                    assert!(
                        position.index() < sequence.tokens.len(),
                        "an ack beyond what was sent"
                    );
                    assert!(position.index() + 1 > sequence.logged, "an ack that moves back");
                    sequence.logged = position.index() + 1;
                }
            }
            ToWorker::End { session, .. } if self.fault == Fault::KeepEnded => {
                self.forgotten = Some(session);
            }
            ToWorker::End { session, keep } => {
                if let Some(sequence) = self.sequences.get(&session) {
                    assert!(keep.index() <= sequence.tokens.len(), "keeps more than there is");
                    self.end(session, keep.index(), EndReason::Told).await;
                }
            }
            ToWorker::Ping(_) if self.fault == Fault::Deaf => {}
            ToWorker::Ping(number) => self.say(FromWorker::Pong(number)).await,
            ToWorker::Leave => return Ok(Some(Exit::Known(WorkerExit::Clean))),
        }
        Ok(None)
    }

    async fn load(&mut self) -> Result<(), Stop> {
        for done in 0..5 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.say(FromWorker::Loading { done_bytes: done * 100, total_bytes: 400 }).await;
            match self.fault {
                Fault::DieLoading if done == 2 => return Err(die()),
                Fault::StallLoading if done == 2 => return Err(Stop::Stall),
                Fault::ExitLoading(exit) if done == 2 => {
                    return Err(Stop::Exit(Exit::Known(exit)));
                }
                _ => {}
            }
        }
        self.say(FromWorker::Ready(Box::new(Ready {
            arch: "scripted".to_owned(),
            context_len: CONTEXT_LEN,
            vocab_size: model::VOCAB_SIZE,
            threads: 1,
            instruction_set: "none".to_owned(),
            weight_bytes: 400,
            parameters: 100,
            fingerprint: [u8::from(self.fault == Fault::OtherWeights); 32],
        })))
        .await;
        Ok(())
    }

    fn accept(&mut self, submit: Submit) {
        let id = submit.session;
        self.world.0.lock().unwrap().submits.push(id);
        let prompt_len = submit.prompt_len as usize;
        assert!(self.sequences.len() < SLOTS as usize, "more sessions than slots");
        assert!(prompt_len <= submit.tokens.len() && submit.length_max.0 <= CONTEXT_LEN);
        assert!(submit.tokens.len() < submit.length_max.index(), "nothing left to compute");
        let mut expected = submit.tokens[..prompt_len].to_vec();
        while expected.len() < submit.tokens.len() {
            expected.push(model::next_token(&expected, &submit.sampling));
        }
        assert_eq!(expected, submit.tokens, "a replay with other tokens than were emitted");
        let tokens = submit.tokens.clone();
        let logged = tokens.len();
        let sequence = Sequence { submit, tokens, computed: 0, logged };
        assert!(self.sequences.insert(id, sequence).is_none(), "submitted twice to one life");
    }

    /// One step: a chunk of every prefill, a token of every decode.
    async fn compute(&mut self) -> Result<(), Stop> {
        let ids: Vec<SessionId> = self.sequences.keys().copied().collect();
        for id in ids {
            let sequence = self.sequences.get_mut(&id).unwrap();
            if sequence.is_paused() || self.forgotten == Some(id) {
                continue;
            }
            let length = sequence.tokens.len();
            if sequence.computed + 1 < length {
                sequence.computed = (sequence.computed + PREFILL_CHUNK).min(length - 1);
                let position = Position(0).plus(sequence.computed);
                let is_poison = sequence.tokens[0] == POISON;
                self.progress(id, position, is_poison).await?;
            } else {
                self.draw(id).await?;
            }
        }
        Ok(())
    }

    async fn progress(
        &mut self,
        id: SessionId,
        position: Position,
        is_poison: bool,
    ) -> Result<(), Stop> {
        self.progresses += 1;
        let poison = self.world.0.lock().unwrap().poison.filter(|_| is_poison);
        let fault = poison.unwrap_or(self.fault);
        match fault {
            Fault::DieAtProgress(at) if self.progresses >= at || poison.is_some() => {
                return Err(die());
            }
            Fault::StallAtProgress(at) if self.progresses >= at || poison.is_some() => {
                return Err(Stop::Stall);
            }
            Fault::AtToken(_, AtToken::NonFinite) if poison.is_some() => {
                return Err(self.nonfinite(id, position).await);
            }
            _ => {}
        }
        self.say(FromWorker::Progress { session: id, position }).await;
        Ok(())
    }

    async fn nonfinite(&mut self, session: SessionId, position: Position) -> Stop {
        let place = NonFinitePlace::Logits;
        self.say(FromWorker::NonFinite(NonFinite { session, position, place })).await;
        Stop::Exit(Exit::Known(WorkerExit::NonFinite))
    }

    async fn draw(&mut self, id: SessionId) -> Result<(), Stop> {
        let sequence = self.sequences.get_mut(&id).unwrap();
        let token = model::next_token(&sequence.tokens, &sequence.submit.sampling);
        let position = Position(0).plus(sequence.tokens.len());
        sequence.computed = sequence.tokens.len();
        sequence.tokens.push(token);
        let length = sequence.tokens.len();
        let reason = if sequence.submit.end_tokens.contains(&token) {
            Some(EndReason::EndToken)
        } else {
            (length >= sequence.submit.length_max.index()).then_some(EndReason::Length)
        };
        self.emitted += 1;
        if let Fault::AtToken(at, what) = self.fault
            && self.emitted >= at
        {
            self.break_at(what, id, position, token).await?;
        }
        self.tokens(self.incarnation, id, position, vec![token]).await;
        if self.fault == Fault::Forget(self.emitted) && reason.is_none() {
            self.forgotten = Some(id);
        }
        if let Some(reason) = reason {
            self.end(id, length, reason).await;
        }
        Ok(())
    }

    async fn break_at(
        &mut self,
        what: AtToken,
        id: SessionId,
        position: Position,
        token: TokenId,
    ) -> Result<(), Stop> {
        let own = self.incarnation;
        match what {
            AtToken::Die => {
                self.tokens(own, id, position, vec![token]).await;
                return Err(die());
            }
            AtToken::DieSlowly => return Err(Stop::Dying),
            AtToken::Stall => return Err(Stop::Stall),
            AtToken::Exit(exit) => return Err(Stop::Exit(Exit::Known(exit))),
            AtToken::NonFinite => return Err(self.nonfinite(id, position).await),
            AtToken::WrongIncarnation => {
                self.tokens(Incarnation(own.0 + 1), id, position, vec![token]).await;
            }
            AtToken::Gap => self.tokens(own, id, position.next(), vec![token]).await,
            AtToken::Repeat => self.tokens(own, id, position, vec![token]).await,
            AtToken::Alien => {
                self.tokens(own, id, position, vec![TokenId(model::VOCAB_SIZE)]).await;
            }
            AtToken::Empty => self.tokens(own, id, position, vec![]).await,
            AtToken::EndEarly => {
                let (length, reason) = (position, EndReason::Told);
                self.say(FromWorker::Ended { session: id, length, reason }).await;
            }
            AtToken::EndUnknown => {
                let session = self.last_ended.unwrap_or(SessionId(u64::MAX));
                let reason = EndReason::Told;
                self.say(FromWorker::Ended { session, length: position, reason }).await;
            }
            AtToken::Garbage => {
                self.write.write_all(&[0xff; 40]).await.ok();
            }
            AtToken::CloseLink => {
                self.write.shutdown().await.ok();
            }
        }
        if what != AtToken::Repeat {
            return Err(Stop::Stall);
        }
        Ok(())
    }

    async fn end(&mut self, session: SessionId, length: usize, reason: EndReason) {
        self.sequences.remove(&session);
        self.last_ended = Some(session);
        let length = Position(0).plus(length);
        self.say(FromWorker::Ended { session, length, reason }).await;
    }

    async fn tokens(
        &mut self,
        incarnation: Incarnation,
        session: SessionId,
        position: Position,
        tokens: Vec<TokenId>,
    ) {
        self.world.0.lock().unwrap().sent.push(std::time::Instant::now());
        let sampled = |token| Sampled { token, logprobs: None };
        let tokens = tokens.into_iter().map(sampled).collect();
        self.send(incarnation, FromWorker::Tokens { session, position, tokens }).await;
    }

    async fn say(&mut self, body: FromWorker) {
        self.send(self.incarnation, body).await;
    }

    /// A broken pipe is seen when reading.
    async fn send(&mut self, incarnation: Incarnation, body: FromWorker) {
        let mut bytes = Vec::new();
        frame::write(&Message { incarnation, body }, &mut bytes).unwrap();
        self.write.write_all(&bytes).await.ok();
    }
}

impl Sequence {
    fn is_paused(&self) -> bool {
        self.tokens.len() - self.logged >= RUN_AHEAD_MAX as usize
    }
}
