//! The blocking loop between the link, the scheduler and the engine.
//!
//! One thread does everything in turn: take every frame that has arrived, compute one pass, send
//! what it gave. It blocks only when there is nothing to compute. The link is also looked at
//! between the layers of a pass (`pulse.rs`), so that a `Ping` is answered by the thread
//! that computes, an orphan notices within a layer that it is one, and a cancelled prefill ends
//! within a layer.
//!
//! The other end is the supervisor's `worker/link.rs`; the order of messages is written in
//! [`shared::protocol`].

pub mod compute;
pub mod link;
pub mod scheduler;

mod pulse;

use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use shared::fault::{NonFinite, NonFinitePlace, WorkerExit};
use shared::ids::{Position, TokenId};
use shared::limits::SLOTS_MAX;
use shared::protocol::{FromWorker, PROTOCOL_VERSION, Ready, Start, ToWorker};

use crate::engine::sampler::Sampler;
use crate::engine::{EngineError, LogitsWanted, Part, SlotIndex};
use crate::epitaph;
use compute::Compute;
use link::{Link, LinkFault};
use pulse::Pulse;
use scheduler::{Item, Limits, Outcome, Scheduler};

/// How long the report of a non-finite value may take to leave.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// Why the loop ended: the exit, and the words for the epitaph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fate {
    /// The exit code.
    pub exit: WorkerExit,
    /// `key=value` words for the epitaph.
    pub detail: String,
}

impl Fate {
    fn new(exit: WorkerExit, what: impl std::fmt::Display) -> Self {
        Self { exit, detail: format!("detail=\"{}\"", what.to_string().replace('"', "'")) }
    }
}

impl From<LinkFault> for Fate {
    fn from(fault: LinkFault) -> Self {
        match fault {
            LinkFault::Gone(why) => Self::new(WorkerExit::SupervisorGone, why),
            LinkFault::Protocol(why) => Self::new(WorkerExit::Protocol, why),
        }
    }
}

impl From<EngineError> for Fate {
    fn from(error: EngineError) -> Self {
        Self::new(error.exit(), error)
    }
}

/// Serves one worker life, from `Start` to its end. `open` loads the engine and reports weight
/// bytes done and in all as it goes.
pub fn run<C: Compute>(
    stream: UnixStream,
    open: impl FnOnce(&Start, &mut dyn FnMut(u64, u64)) -> Result<C, EngineError>,
) -> Fate {
    let Err(fate) = serve(stream, open);
    fate
}

/// Never returns without a fate.
fn serve<C: Compute>(
    stream: UnixStream,
    open: impl FnOnce(&Start, &mut dyn FnMut(u64, u64)) -> Result<C, EngineError>,
) -> Result<std::convert::Infallible, Fate> {
    let mut link = Link::new(stream)?;
    let start = await_start(&mut link)?;
    if let Some(incarnation) = link.incarnation() {
        epitaph::set_incarnation(incarnation);
    }
    check_start(&start)?;
    let mut pulse = Pulse::new(link);
    let mut engine = open(&start, &mut |done, total| pulse.loading(done, total))?;
    pulse.take_fate()?;
    warm_up(&mut engine, &mut pulse)?;
    let ready = ready(&engine);
    let context_len = ready.context_len;
    // As the engine bounds its own room for a pass.
    let limits = Limits {
        slots: start.slots,
        context_len,
        vocab_size: ready.vocab_size,
        prefill_chunk: start.prefill_chunk.min(context_len),
    };
    pulse.link.queue(FromWorker::Ready(Box::new(ready)));
    let sampler = Sampler::new(&engine.info().instruction_set);
    Server { engine, pulse, scheduler: Scheduler::new(limits), sampler }.turn()
}

fn await_start(link: &mut Link) -> Result<Start, Fate> {
    loop {
        match link.receive()? {
            Some(ToWorker::Start(start)) => return Ok(start),
            Some(ToWorker::Leave) => return Err(Fate::new(WorkerExit::Clean, "told to leave")),
            Some(_) => {
                return Err(Fate::new(WorkerExit::Protocol, "the first frame was not Start"));
            }
            None => link.wait()?,
        }
    }
}

fn check_start(start: &Start) -> Result<(), Fate> {
    let protocol = |what| Err(Fate::new(WorkerExit::Protocol, what));
    if start.protocol_version != PROTOCOL_VERSION {
        return protocol(format!(
            "the supervisor speaks protocol version {}, this worker {PROTOCOL_VERSION}: install \
             both from one build",
            start.protocol_version
        ));
    }
    if start.slots == 0 || start.slots > SLOTS_MAX {
        return protocol(format!("{} slots; 1 to {SLOTS_MAX} are possible", start.slots));
    }
    if start.prefill_chunk == 0 {
        return protocol("a prefill chunk of 0 tokens".to_string());
    }
    Ok(())
}

/// Computes one token, so that `Ready` is said by an engine that has worked.
fn warm_up<C: Compute>(engine: &mut C, pulse: &mut Pulse) -> Result<(), Fate> {
    let tokens = [engine.info().bos.unwrap_or(TokenId(0))];
    let part = Part {
        slot: SlotIndex(0),
        start: Position(0),
        tokens: &tokens,
        logits: LogitsWanted::Last,
    };
    let done = engine.forward(&[part], &mut || pulse.beat(), &mut |_| {})?;
    pulse.take_fate()?;
    assert!(done.is_continue(), "only a fate breaks the warm-up");
    engine.truncate(SlotIndex(0), Position(0));
    Ok(())
}

fn ready<C: Compute>(engine: &C) -> Ready {
    let info = engine.info();
    Ready {
        arch: info.arch.clone(),
        context_len: info.context_len,
        vocab_size: info.vocab_size,
        threads: info.threads,
        instruction_set: info.instruction_set.clone(),
        weight_bytes: info.weight_bytes,
        parameters: info.parameters,
        fingerprint: info.fingerprint,
    }
}

struct Server<C> {
    engine: C,
    pulse: Pulse,
    scheduler: Scheduler,
    sampler: Sampler,
}

impl<C: Compute> Server<C> {
    fn turn(mut self) -> Result<std::convert::Infallible, Fate> {
        loop {
            self.pulse.listen()?;
            while let Some(message) = self.pulse.inbox.pop_front() {
                self.obey(message)?;
            }
            let plan = self.scheduler.plan();
            if plan.is_empty() {
                self.pulse.wait()?;
            } else {
                self.compute(&plan)?;
            }
        }
    }

    fn obey(&mut self, message: ToWorker) -> Result<(), Fate> {
        let outcome = match message {
            ToWorker::Submit(submit) => self.scheduler.submit(*submit),
            ToWorker::Ack { session, position } => {
                self.scheduler
                    .acknowledge(session, position)
                    .map_err(|why| Fate::new(WorkerExit::Protocol, why))?;
                Outcome::default()
            }
            ToWorker::End { session, keep } => self.scheduler.end(session, keep),
            ToWorker::Ping(number) => {
                Outcome { messages: vec![FromWorker::Pong(number)], freed: Vec::new() }
            }
            ToWorker::Leave => return Err(Fate::new(WorkerExit::Clean, "told to leave")),
            ToWorker::Start(_) => {
                return Err(Fate::new(WorkerExit::Protocol, "Start was sent twice"));
            }
        };
        self.publish(outcome);
        Ok(())
    }

    /// One pass, its draws, and the frames that follow from them.
    fn compute(&mut self, plan: &[Item]) -> Result<(), Fate> {
        let Self { engine, pulse, scheduler, sampler, .. } = self;
        let parts = scheduler.parts(plan);
        let mut drawn = Vec::new();
        let mut bad = None;
        pulse.begin_pass();
        let result = engine.forward(&parts, &mut || pulse.beat_within(plan), &mut |row| {
            let session = scheduler.session(plan[row.part].session);
            match sampler.draw(&session.draw(), row.values) {
                Ok(sampled) => drawn.push(sampled),
                Err(logit) => bad = Some((row.part, row.position, logit.index)),
            }
        });
        pulse.take_fate()?;
        if let Some((part, position, index)) = bad {
            return Err(self.report_non_finite(&plan[part], position, index));
        }
        match result {
            Ok(ControlFlow::Continue(())) => {
                let outcome = self.scheduler.complete(plan, drawn);
                self.publish(outcome);
                Ok(())
            }
            // Every session of the pass is to end; the inbox says so.
            Ok(ControlFlow::Break(())) => Ok(()),
            Err(EngineError::NonFinite { part, position, index }) => {
                Err(self.report_non_finite(&plan[part], position, index))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn publish(&mut self, outcome: Outcome) {
        for slot in outcome.freed {
            self.engine.truncate(slot, Position(0));
        }
        for message in outcome.messages {
            self.pulse.link.queue(message);
        }
    }

    fn report_non_finite(&mut self, item: &Item, position: Position, index: usize) -> Fate {
        let session = item.session;
        let place = NonFinitePlace::Logits;
        self.pulse.link.queue(FromWorker::NonFinite(NonFinite { session, position, place }));
        self.pulse.link.flush_within(FAREWELL_MAX);
        Fate {
            exit: WorkerExit::NonFinite,
            detail: format!("session={session} position={position} place=logits index={index}"),
        }
    }
}

#[cfg(test)]
mod tests;
