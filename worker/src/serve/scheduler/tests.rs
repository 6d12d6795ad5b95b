//! The scheduler alone: who is in a pass, who waits, what a pass leads to.

use super::{Item, Limits, Outcome, PREFILL_CHUNK_SHARED, Scheduler};
use crate::engine::{LogitsWanted, SlotIndex};
use shared::ids::{Position, SessionId, TokenId};
use shared::limits::RUN_AHEAD_MAX;
use shared::protocol::{EndReason, FromWorker, Sampled, Sampling, Submit};

const LIMITS: Limits = Limits { slots: 3, context_len: 4096, vocab_size: 100, prefill_chunk: 512 };

fn submission(session: u64, n_tokens: u32) -> Submit {
    Submit {
        session: SessionId(session),
        tokens: (0..n_tokens).map(|index| TokenId(index % 100)).collect(),
        prompt_len: n_tokens,
        length_max: Position(4096),
        end_tokens: vec![TokenId(99)],
        sampling: Sampling::default(),
    }
}

fn submit(scheduler: &mut Scheduler, submit: Submit) -> Outcome {
    scheduler.submit(submit)
}

fn scheduler(submissions: &[Submit]) -> Scheduler {
    let mut scheduler = Scheduler::new(LIMITS);
    for submission in submissions {
        assert_eq!(submit(&mut scheduler, submission.clone()), Outcome::default());
    }
    scheduler
}

/// One pass in which every draw gives `token`.
fn pass(scheduler: &mut Scheduler, token: u32) -> (Vec<Item>, Outcome) {
    let plan = scheduler.plan();
    let sampled = Sampled { token: TokenId(token), logprobs: None };
    let drawn = vec![sampled; plan.iter().filter(|item| item.draws).count()];
    let outcome = scheduler.complete(&plan, drawn);
    (plan, outcome)
}

fn counts(plan: &[Item]) -> Vec<(u64, u32, usize, bool)> {
    plan.iter().map(|item| (item.session.0, item.start.0, item.count, item.draws)).collect()
}

fn refusal(outcome: &Outcome) -> &str {
    match outcome.messages.as_slice() {
        [FromWorker::Ended { reason: EndReason::Refused(why), .. }] => why,
        other => panic!("not a refusal: {other:?}"),
    }
}

#[test]
fn a_prompt_is_computed_in_chunks_and_its_last_chunk_draws() {
    let mut scheduler = scheduler(&[submission(1, 1100)]);
    let (plan, outcome) = pass(&mut scheduler, 5);
    assert_eq!(counts(&plan), [(1, 0, 512, false)]);
    let progress = |position| FromWorker::Progress { session: SessionId(1), position };
    assert_eq!(outcome.messages, [progress(Position(512))]);
    assert_eq!(counts(&pass(&mut scheduler, 5).0), [(1, 512, 512, false)]);

    let parts = scheduler.plan();
    let parts = scheduler.parts(&parts);
    assert_eq!((parts[0].tokens[0], parts[0].tokens.len()), (TokenId(24), 76));
    assert_eq!(parts[0].logits, LogitsWanted::Last);

    let (plan, outcome) = pass(&mut scheduler, 5);
    assert_eq!(counts(&plan), [(1, 1024, 76, true)]);
    let tokens = vec![Sampled { token: TokenId(5), logprobs: None }];
    let tokens = FromWorker::Tokens { session: SessionId(1), position: Position(1100), tokens };
    assert_eq!(outcome.messages, [progress(Position(1100)), tokens]);
    assert_eq!(counts(&pass(&mut scheduler, 5).0), [(1, 1100, 1, true)]);
}

#[test]
fn decoding_sessions_are_in_every_pass_and_shrink_the_chunk_beside_them() {
    let mut scheduler = scheduler(&[submission(1, 1), submission(2, 300), submission(3, 300)]);
    let shared = PREFILL_CHUNK_SHARED as usize;
    assert_eq!(counts(&pass(&mut scheduler, 5).0), [(1, 0, 1, true), (2, 0, shared, false)]);
    assert_eq!(counts(&pass(&mut scheduler, 5).0), [(1, 1, 1, true), (2, 128, shared, false)]);
    let last = [(1, 2, 1, true), (2, 256, 44, true), (3, 0, shared - 44, false)];
    assert_eq!(counts(&pass(&mut scheduler, 5).0), last, "what the oldest leaves is the next's");
    assert_eq!(
        counts(&pass(&mut scheduler, 5).0),
        [(1, 3, 1, true), (2, 300, 1, true), (3, 84, shared, false)]
    );
}

#[test]
fn several_short_prompts_share_a_pass() {
    let mut scheduler = scheduler(&[submission(1, 200), submission(2, 300), submission(3, 300)]);
    let expected = [(1, 0, 200, true), (2, 0, 300, true), (3, 0, 12, false)];
    assert_eq!(counts(&pass(&mut scheduler, 5).0), expected);
}

#[test]
fn a_session_pauses_at_the_run_ahead_bound_until_it_is_acknowledged() {
    let mut scheduler = scheduler(&[submission(1, 10)]);
    for _ in 0..RUN_AHEAD_MAX {
        assert_eq!(pass(&mut scheduler, 5).0.len(), 1);
    }
    assert_eq!(scheduler.plan(), [], "nothing to compute, so the loop can block");
    scheduler.acknowledge(SessionId(1), Position(12)).unwrap();
    for _ in 0..3 {
        assert_eq!(pass(&mut scheduler, 5).0.len(), 1);
    }
    assert_eq!(scheduler.plan(), []);
    scheduler.acknowledge(SessionId(1), Position(2)).unwrap();
    assert_eq!(scheduler.plan(), [], "an acknowledgement never moves back");
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_an_error() {
    let mut scheduler = scheduler(&[submission(1, 10)]);
    let error = scheduler.acknowledge(SessionId(1), Position(10)).unwrap_err();
    assert!(error.contains("position 10"), "{error}");
    scheduler.acknowledge(SessionId(1), Position(9)).unwrap();
    scheduler.acknowledge(SessionId(7), Position(1000)).unwrap();
}

#[test]
fn an_end_is_exact_frees_the_slot_and_is_said_once() {
    let mut scheduler = scheduler(&[submission(1, 10), submission(2, 10)]);
    for _ in 0..4 {
        pass(&mut scheduler, 5);
    }
    let ended = scheduler.end(SessionId(1), Position(12));
    let message =
        FromWorker::Ended { session: SessionId(1), length: Position(12), reason: EndReason::Told };
    assert_eq!(ended, Outcome { messages: vec![message], freed: vec![SlotIndex(0)] });
    assert_eq!(scheduler.end(SessionId(1), Position(12)), Outcome::default());
    submit(&mut scheduler, submission(3, 10));
    let slots: Vec<_> = scheduler.plan().iter().map(|item| item.slot.0).collect();
    assert_eq!(slots, [1, 0], "session 3 has the slot of session 1");
}

#[test]
fn the_ending_token_is_sent_before_the_end() {
    let length = Submit { length_max: Position(11), end_tokens: vec![], ..submission(2, 10) };
    let mut scheduler = scheduler(&[submission(1, 10), length]);
    let (_, outcome) = pass(&mut scheduler, 99);
    let reasons: Vec<_> = outcome
        .messages
        .iter()
        .filter_map(|message| match message {
            FromWorker::Ended { session, length, reason } => Some((session.0, length.0, reason)),
            _ => None,
        })
        .collect();
    assert_eq!(reasons, [(1, 11, &EndReason::EndToken), (2, 11, &EndReason::Length)]);
    let is_token = |message: &FromWorker| matches!(message, FromWorker::Tokens { .. });
    assert_eq!(outcome.messages.iter().filter(|message| is_token(message)).count(), 2);
    assert_eq!(outcome.freed, [SlotIndex(0), SlotIndex(1)]);
    assert_eq!(scheduler.plan(), []);
}

#[test]
fn a_replay_forces_the_emitted_tokens_and_draws_the_next_position() {
    let replay = Submit { prompt_len: 4, ..submission(1, 10) };
    let mut scheduler = scheduler(&[replay]);
    let draw = scheduler.session(SessionId(1)).draw();
    assert_eq!((draw.tokens.len(), draw.prompt_len), (10, 4));
    let (plan, outcome) = pass(&mut scheduler, 5);
    assert_eq!(counts(&plan), [(1, 0, 10, true)]);
    assert!(matches!(outcome.messages[1], FromWorker::Tokens { position: Position(10), .. }));
}

#[test]
fn a_replay_with_nothing_left_to_draw_ends_at_once() {
    let mut ended = Submit { prompt_len: 4, ..submission(1, 10) };
    ended.tokens[9] = TokenId(99);
    let in_prompt = Submit { prompt_len: 10, ..ended.clone() };
    let full = Submit { length_max: Position(10), ..submission(2, 10) };
    for (submission, expected) in [(ended, EndReason::EndToken), (full, EndReason::Length)] {
        let outcome = submit(&mut Scheduler::new(LIMITS), submission);
        let [FromWorker::Ended { reason, length: Position(10), .. }] = &outcome.messages[..] else {
            panic!("{outcome:?}");
        };
        assert_eq!(*reason, expected);
    }
    assert_eq!(submit(&mut Scheduler::new(LIMITS), in_prompt), Outcome::default());
}

#[test]
fn what_cannot_be_computed_is_refused_with_a_reason() {
    let base = || submission(9, 10);
    let cases = [
        (Submit { tokens: vec![], prompt_len: 0, ..base() }, "empty"),
        (Submit { prompt_len: 0, ..base() }, "empty"),
        (Submit { prompt_len: 11, ..base() }, "prompt_len is 11 of 10"),
        (submission(9, 4097), "context of 4096"),
        (Submit { length_max: Position(4097), ..base() }, "context of 4096"),
        (Submit { tokens: vec![TokenId(100); 10], ..base() }, "vocabulary of 100"),
        (Submit { end_tokens: vec![TokenId(0); 65], ..base() }, "65 end tokens"),
        (submission(1, 10), "under way"),
    ];
    let mut scheduler = scheduler(&[submission(1, 10)]);
    for (submission, expected) in cases {
        let outcome = submit(&mut scheduler, submission);
        assert!(refusal(&outcome).contains(expected), "{outcome:?}");
    }
    let cold = Sampling { temperature: -1.0, ..Sampling::default() };
    let outcome = submit(&mut scheduler, Submit { sampling: cold, ..base() });
    assert!(refusal(&outcome).contains("temperature is -1"), "{outcome:?}");

    submit(&mut scheduler, submission(2, 10));
    submit(&mut scheduler, submission(3, 10));
    let outcome = submit(&mut scheduler, base());
    assert!(refusal(&outcome).contains("all 3 slots"), "{outcome:?}");
    assert_eq!(scheduler.plan().len(), 3, "the others go on");
}

/// Small numbers that look random; the seed is in the failure's message.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        u32::try_from(self.0 >> 33).unwrap() % bound
    }
}

/// What a supervisor would see and check.
#[derive(Default)]
struct Watched {
    length: u32,
    acknowledged: u32,
    ends: u32,
}

#[test]
fn any_course_of_events_keeps_the_laws() {
    for seed in 0..200 {
        let mut numbers = Numbers(seed);
        let mut scheduler = Scheduler::new(LIMITS);
        let mut watched: Vec<Watched> = Vec::new();
        for _ in 0..300 {
            let outcome = match (numbers.below(8), watched.len()) {
                (0, count) => {
                    let length = 1 + numbers.below(700);
                    let length_max = Position(length + numbers.below(60));
                    watched.push(Watched { length, acknowledged: length, ends: 0 });
                    let id = u64::try_from(count).unwrap();
                    submit(&mut scheduler, Submit { length_max, ..submission(id, length) })
                }
                (1, count) if count > 0 => {
                    let id = numbers.below(u32::try_from(count).unwrap());
                    let keep = Position(watched[id as usize].length);
                    scheduler.end(SessionId(u64::from(id)), keep)
                }
                (2 | 3, count) if count > 0 => {
                    let id = numbers.below(u32::try_from(count).unwrap());
                    let session = &mut watched[id as usize];
                    session.acknowledged = session.length;
                    let last = Position(session.length - 1);
                    scheduler.acknowledge(SessionId(u64::from(id)), last).unwrap();
                    Outcome::default()
                }
                _ => {
                    let token = numbers.below(100);
                    let (plan, outcome) = pass(&mut scheduler, token);
                    check_pass(&plan, seed);
                    outcome
                }
            };
            for message in outcome.messages {
                watch(&mut watched, &message, seed);
            }
        }
        let under_way = watched.iter().filter(|session| session.ends == 0).count();
        assert_eq!(under_way, scheduler.sessions.len(), "seed {seed}");
    }
}

fn check_pass(plan: &[Item], seed: u64) {
    let mut slots: Vec<_> = plan.iter().map(|item| item.slot).collect();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), plan.len(), "seed {seed}: a slot stands twice in a pass");
    let prefill: usize = plan.iter().filter(|item| item.is_prefill()).map(|item| item.count).sum();
    let bound = LIMITS.prefill_chunk as usize;
    assert!(prefill <= bound, "seed {seed}: {prefill} prefill tokens in a pass");
    let decodes = plan.iter().any(|item| !item.is_prefill());
    let bound = PREFILL_CHUNK_SHARED as usize;
    assert!(!decodes || prefill <= bound, "seed {seed}: {prefill} tokens beside a decode row");
}

fn watch(watched: &mut [Watched], message: &FromWorker, seed: u64) {
    match message {
        FromWorker::Tokens { session, position, tokens } => {
            let session = &mut watched[usize::try_from(session.0).unwrap()];
            assert_eq!((position.0, session.ends), (session.length, 0), "seed {seed}");
            session.length += u32::try_from(tokens.len()).unwrap();
            assert!(session.length - session.acknowledged <= RUN_AHEAD_MAX, "seed {seed}");
        }
        FromWorker::Ended { session, length, .. } => {
            let session = &mut watched[usize::try_from(session.0).unwrap()];
            session.ends += 1;
            assert_eq!((session.ends, length.0), (1, session.length), "seed {seed}");
        }
        _ => {}
    }
}
