//! Which positions are computed next, and what became of them. Pure: no I/O, no clock.
//!
//! ```text
//!             Submit                    prompt computed
//!   (refused) ──────► prefilling ───────────────────────► decoding ◄──┐ Ack
//!                          │                               │    │      │
//!                          │ End       End, end token, length   └────► paused
//!                          └────────────► ended ◄──┘     RUN_AHEAD_MAX beyond the last Ack
//! ```
//!
//! # The rule of a pass
//!
//! A pass holds one row for every decoding session that is not paused, and prefill tokens of the
//! prefilling sessions in order of arrival: up to `prefill_chunk` if nobody decodes, up to
//! [`PREFILL_CHUNK_SHARED`] otherwise.
//!
//! So a decoding session gets one token from every pass, and no pass is longer than `slots` rows
//! plus `PREFILL_CHUNK_SHARED` rows while anyone decodes. The oldest prefilling session advances
//! with every pass. A paused session is in no pass; if all are paused there is no pass at all.
//!
//! Invariants of a session:
//!
//! * `computed < tokens.len()`: at least the last token is still to be computed.
//! * `logged <= tokens.len()`, and `tokens.len() - logged <= RUN_AHEAD_MAX`.

use shared::ids::{Position, SessionId, TokenId};
use shared::limits::{END_TOKENS_MAX, RUN_AHEAD_MAX};
use shared::protocol::{EndReason, FromWorker, Sampled, Submit};

use crate::engine::sampler::{Draw, Settings};
use crate::engine::{LogitsWanted, Part, SlotIndex};

/// Most prefill tokens in a pass that also decodes: large enough to keep the weights' cost per
/// token low, small enough that a decoding session's pace stays near one token a quarter second
/// even on a slow machine.
pub const PREFILL_CHUNK_SHARED: u32 = 128;

/// What bounds the sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sequences at once.
    pub slots: u32,
    /// Tokens a sequence may hold.
    pub context_len: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Most prefill tokens in a pass.
    pub prefill_chunk: u32,
}

/// A sequence under way.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    slot: SlotIndex,
    /// Prompt, then emitted tokens.
    tokens: Vec<TokenId>,
    prompt_len: usize,
    /// Tokens whose keys and values are in the KV cache.
    computed: usize,
    /// Tokens the supervisor has in its log.
    logged: usize,
    length_max: usize,
    end_tokens: Vec<TokenId>,
    settings: Settings,
}

impl Session {
    /// What the sampler needs to know to draw this session's next token.
    #[must_use]
    pub fn draw(&self) -> Draw<'_> {
        Draw { settings: &self.settings, tokens: &self.tokens, prompt_len: self.prompt_len }
    }

    fn is_prefilling(&self) -> bool {
        self.tokens.len() - self.computed > 1
    }

    fn is_paused(&self) -> bool {
        self.tokens.len() - self.logged >= RUN_AHEAD_MAX as usize
    }

    /// Why the session is over, judged by what it holds now.
    fn end_reason(&self) -> Option<EndReason> {
        let emitted = self.tokens.len() > self.prompt_len;
        if emitted && self.tokens.last().is_some_and(|last| self.end_tokens.contains(last)) {
            return Some(EndReason::EndToken);
        }
        (self.tokens.len() >= self.length_max).then_some(EndReason::Length)
    }

    fn ended(&self, reason: EndReason) -> FromWorker {
        FromWorker::Ended { session: self.id, length: Position(0).plus(self.tokens.len()), reason }
    }
}

/// One session's share of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// The session.
    pub session: SessionId,
    /// Its slot.
    pub slot: SlotIndex,
    /// First position to compute.
    pub start: Position,
    /// Positions to compute, at least 1.
    pub count: usize,
    /// Whether a token is drawn after the last of them.
    pub draws: bool,
}

impl Item {
    /// Whether this is a part of a prompt rather than a decode row.
    #[must_use]
    pub fn is_prefill(&self) -> bool {
        self.count > 1 || !self.draws
    }
}

/// What a pass or a word of the supervisor led to.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// Frames to send, in order.
    pub messages: Vec<FromWorker>,
    /// Slots whose KV cache is to be dropped.
    pub freed: Vec<SlotIndex>,
}

/// All sessions of this life that have not ended, in order of arrival.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    sessions: Vec<Session>,
}

impl Scheduler {
    /// No session yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, sessions: Vec::new() }
    }

    /// Takes a session in, or ends it at once if it cannot be computed or has nothing left to
    /// compute.
    pub fn submit(&mut self, submit: Submit) -> Outcome {
        let settings = Settings::new(&submit.sampling, self.limits.vocab_size);
        let message = match self.check(&submit).and_then(|slot| Ok((slot, settings?))) {
            Err(why) => FromWorker::Ended {
                session: submit.session,
                length: Position(0).plus(submit.tokens.len()),
                reason: EndReason::Refused(why),
            },
            Ok((slot, settings)) => {
                let session = Session {
                    id: submit.session,
                    slot,
                    prompt_len: submit.prompt_len as usize,
                    computed: 0,
                    logged: submit.tokens.len(),
                    length_max: submit.length_max.index(),
                    tokens: submit.tokens,
                    end_tokens: submit.end_tokens,
                    settings,
                };
                let Some(reason) = session.end_reason() else {
                    self.sessions.push(session);
                    return Outcome::default();
                };
                session.ended(reason)
            }
        };
        Outcome { messages: vec![message], freed: Vec::new() }
    }

    /// The slot for a submission, or why there is none.
    fn check(&self, submit: &Submit) -> Result<SlotIndex, String> {
        let Limits { slots, context_len, vocab_size, .. } = self.limits;
        let length = submit.tokens.len();
        if self.find(submit.session).is_some() {
            return Err("this session is under way already".into());
        }
        if length == 0 || submit.prompt_len == 0 {
            return Err("the prompt is empty".into());
        }
        if submit.prompt_len as usize > length {
            return Err(format!("prompt_len is {} of {length} tokens", submit.prompt_len));
        }
        if length > context_len as usize || submit.length_max.0 > context_len {
            return Err(format!(
                "{length} tokens, to end at {}, do not fit the context of {context_len}",
                submit.length_max
            ));
        }
        if let Some((position, token)) =
            submit.tokens.iter().enumerate().find(|(_, token)| token.0 >= vocab_size)
        {
            return Err(format!(
                "token {token} at position {position} is outside the vocabulary of {vocab_size}"
            ));
        }
        if submit.end_tokens.len() > END_TOKENS_MAX {
            return Err(format!(
                "{} end tokens; the limit is {END_TOKENS_MAX}",
                submit.end_tokens.len()
            ));
        }
        (0..slots)
            .map(SlotIndex)
            .find(|slot| self.sessions.iter().all(|session| session.slot != *slot))
            .ok_or_else(|| format!("all {slots} slots are taken"))
    }

    /// The supervisor has logged everything up to `position`. Never moves back.
    ///
    /// # Errors
    ///
    /// If that position was never sent. The supervisor is then not to be trusted.
    pub fn acknowledge(&mut self, id: SessionId, position: Position) -> Result<(), String> {
        let Some(session) = self.sessions.iter_mut().find(|session| session.id == id) else {
            return Ok(());
        };
        if position.index() >= session.tokens.len() {
            return Err(format!(
                "an acknowledgement of position {position} of session {id}, which has {} tokens",
                session.tokens.len()
            ));
        }
        session.logged = session.logged.max(position.index() + 1);
        Ok(())
    }

    /// Ends a session so that `keep` tokens of it remain. An unknown one is ignored: its `Ended`
    /// is under way.
    pub fn end(&mut self, id: SessionId, keep: Position) -> Outcome {
        let Some(index) = self.find(id) else {
            return Outcome::default();
        };
        let mut session = self.sessions.remove(index);
        session.tokens.truncate(keep.index());
        Outcome { messages: vec![session.ended(EndReason::Told)], freed: vec![session.slot] }
    }

    /// The next pass. Empty if there is nothing to compute before the supervisor speaks.
    #[must_use]
    pub fn plan(&self) -> Vec<Item> {
        let is_shared = self.sessions.iter().any(|session| !session.is_prefilling());
        let chunk = self.limits.prefill_chunk;
        let chunk = if is_shared { chunk.min(PREFILL_CHUNK_SHARED) } else { chunk };
        let mut budget = chunk as usize;
        let mut items = Vec::new();
        for session in &self.sessions {
            let pending = session.tokens.len() - session.computed;
            let count = if !session.is_prefilling() {
                usize::from(!session.is_paused())
            } else {
                let count = pending.min(budget);
                budget -= count;
                count
            };
            if count > 0 {
                items.push(Item {
                    session: session.id,
                    slot: session.slot,
                    start: Position(0).plus(session.computed),
                    count,
                    draws: count == pending,
                });
            }
        }
        items
    }

    /// The parts of a pass, as the engine takes them.
    ///
    /// # Panics
    ///
    /// If the plan is not of this state.
    #[must_use]
    pub fn parts(&self, plan: &[Item]) -> Vec<Part<'_>> {
        let part = |item: &Item| Part {
            slot: item.slot,
            start: item.start,
            tokens: &self.session(item.session).tokens[item.start.index()..][..item.count],
            logits: if item.draws { LogitsWanted::Last } else { LogitsWanted::None },
        };
        plan.iter().map(part).collect()
    }

    /// A session that a plan names.
    ///
    /// # Panics
    ///
    /// If it has ended.
    #[must_use]
    pub fn session(&self, id: SessionId) -> &Session {
        let index = self.find(id).expect("a plan names sessions that have not ended");
        &self.sessions[index]
    }

    /// Takes over what a pass computed. `drawn` has one token for each item that draws, in order.
    ///
    /// # Panics
    ///
    /// If the plan is not of this state or the tokens are not of the plan.
    pub fn complete(&mut self, plan: &[Item], drawn: Vec<Sampled>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut drawn = drawn.into_iter();
        for item in plan {
            let index = self.find(item.session).expect("a plan names sessions that have not ended");
            let session = &mut self.sessions[index];
            session.computed += item.count;
            if item.is_prefill() {
                let position = Position(0).plus(session.computed);
                outcome.messages.push(FromWorker::Progress { session: session.id, position });
            }
            if !item.draws {
                continue;
            }
            let sampled = drawn.next().expect("one token for each item that draws");
            let position = Position(0).plus(session.tokens.len());
            session.tokens.push(sampled.token);
            outcome.messages.push(FromWorker::Tokens {
                session: session.id,
                position,
                tokens: vec![sampled],
            });
            if let Some(reason) = session.end_reason() {
                outcome.messages.push(session.ended(reason));
                outcome.freed.push(session.slot);
                self.sessions.remove(index);
            }
        }
        outcome
    }

    fn find(&self, id: SessionId) -> Option<usize> {
        self.sessions.iter().position(|session| session.id == id)
    }
}

#[cfg(test)]
mod tests;
