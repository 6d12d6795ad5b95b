//! A row of logits depends on its sequence up to it and on nothing else: bits are compared.

mod support;

use std::ops::ControlFlow;

use shared::ids::{Position, TokenId};
use strata_worker::backend::Cpu;
use strata_worker::engine::{Engine, EngineError, EngineOptions, LogitsWanted, Part, SlotIndex};
use support::{
    F16, F32, File, Q4_0, Q8_0, Random, TempDir, forward, open, options, rows_in_chunks,
};

fn part<'a>(slot: u32, start: u32, tokens: &'a [TokenId], logits: LogitsWanted) -> Part<'a> {
    Part { slot: SlotIndex(slot), start: Position(start), tokens, logits }
}

/// A tiny engine, and the directory its file lies in.
fn tiny(type_id: u32, options: &EngineOptions) -> (TempDir, Engine<Cpu>) {
    let dir = TempDir::new();
    let path = dir.file("tiny.gguf");
    File::tiny(type_id, 7).write(&path);
    let engine = open(&path, options);
    (dir, engine)
}

#[test]
fn prefill_in_any_chunks_gives_the_same_bits_as_one_token_at_a_time() {
    for type_id in [F32, F16, Q4_0, Q8_0] {
        let (_dir, mut engine) = tiny(type_id, &options());
        let tokens = Random(3).tokens(150);
        let slot = SlotIndex(0);
        let single = rows_in_chunks(&mut engine, slot, &tokens, &[1]);
        assert_eq!(single.len(), tokens.len());
        for chunks in [&[96][..], &[64, 7, 1, 30], &[13], &[2, 95]] {
            let rows = rows_in_chunks(&mut engine, slot, &tokens, chunks);
            assert!(rows == single, "type {type_id}, chunks {chunks:?}");
        }
    }
}

#[test]
fn threads_slots_and_instruction_repeats_change_no_bit() {
    let tokens = Random(4).tokens(100);
    let (_dir, mut engine) = tiny(Q8_0, &options());
    let expected = rows_in_chunks(&mut engine, SlotIndex(0), &tokens, &[50]);
    for (threads, slot) in [(1, 3), (2, 0), (3, 1), (8, 2)] {
        let (_dir, mut engine) = tiny(Q8_0, &EngineOptions { threads, ..options() });
        let rows = rows_in_chunks(&mut engine, SlotIndex(slot), &tokens, &[50]);
        assert!(rows == expected, "{threads} threads, slot {slot}");
    }
}

#[test]
fn sequences_computed_together_do_not_touch_each_other() {
    let (_dir, mut engine) = tiny(Q8_0, &options());
    let mut random = Random(5);
    let sequences: Vec<_> = [70, 33, 90, 64].map(|count| random.tokens(count)).into();
    let alone: Vec<_> = sequences
        .iter()
        .map(|tokens| rows_in_chunks(&mut engine, SlotIndex(0), tokens, &[96]))
        .collect();
    // Prefill of some beside decode of others, in one pass after the other.
    let mut together = vec![Vec::new(); sequences.len()];
    for turn in 0.. {
        let mut parts = Vec::new();
        let mut owners = Vec::new();
        for (index, tokens) in sequences.iter().enumerate() {
            let slot = u32::try_from(index).unwrap();
            let start = engine.length(SlotIndex(slot));
            let count = if (turn + index) % 3 == 0 { 17 } else { 1 };
            let rest = &tokens[start.index()..];
            if !rest.is_empty() {
                let tokens = &rest[..count.min(rest.len())];
                parts.push(part(slot, start.0, tokens, LogitsWanted::All));
                owners.extend(std::iter::repeat_n(index, tokens.len()));
            }
        }
        if parts.is_empty() {
            break;
        }
        let rows = forward(&mut engine, &parts);
        owners.into_iter().zip(rows).for_each(|(owner, row)| together[owner].push(row));
    }
    assert!(together == alone);
}

#[test]
fn only_the_rows_asked_for_are_given() {
    let (_dir, mut engine) = tiny(Q8_0, &options());
    let tokens = Random(6).tokens(40);
    let all = rows_in_chunks(&mut engine, SlotIndex(0), &tokens, &[40]);
    let parts = [
        part(0, 0, &tokens, LogitsWanted::None),
        part(1, 0, &tokens[..10], LogitsWanted::Last),
        part(2, 0, &tokens[..3], LogitsWanted::All),
    ];
    let logits = engine.forward(&parts, &mut || ControlFlow::Continue(())).unwrap().unwrap();
    let places: Vec<_> = logits.iter().map(|row| (row.part, row.position.0)).collect();
    assert_eq!(places, [(1, 9), (2, 0), (2, 1), (2, 2)]);
    for row in logits.iter() {
        let bits: Vec<_> = row.values.iter().map(|value| value.to_bits()).collect();
        assert_eq!(bits, all[row.position.index()]);
    }
    let none = engine
        .forward(&[part(3, 0, &tokens, LogitsWanted::None)], &mut || ControlFlow::Continue(()));
    assert!(none.unwrap().unwrap().is_empty());
    // Its keys and values are there all the same.
    let next = forward(&mut engine, &[part(3, 40, &tokens[..1], LogitsWanted::Last)]);
    let again = forward(&mut engine, &[part(0, 40, &tokens[..1], LogitsWanted::Last)]);
    assert_eq!(next, again);
}

#[test]
fn a_truncated_sequence_goes_on_as_if_the_rest_had_never_been() {
    let (_dir, mut engine) = tiny(Q8_0, &options());
    let mut random = Random(8);
    let (tokens, other) = (random.tokens(140), random.tokens(50));
    let expected = rows_in_chunks(&mut engine, SlotIndex(0), &tokens, &[96]);
    for kept in [0, 1, 63, 64, 65, 90, 139] {
        engine.truncate(SlotIndex(0), Position(0));
        let mut at = 0;
        for chunk in tokens[..kept].chunks(96).chain(other.chunks(96)) {
            forward(&mut engine, &[part(0, at, chunk, LogitsWanted::None)]);
            at += u32::try_from(chunk.len()).unwrap();
        }
        let kept_position = u32::try_from(kept).unwrap();
        engine.truncate(SlotIndex(0), Position(kept_position));
        assert_eq!(engine.length(SlotIndex(0)), Position(kept_position));
        let mut rows = Vec::new();
        for chunk in tokens[kept..].chunks(96) {
            let start = engine.length(SlotIndex(0)).0;
            rows.extend(forward(&mut engine, &[part(0, start, chunk, LogitsWanted::All)]));
        }
        assert!(rows == expected[kept..], "kept {kept}");
    }
}

#[test]
fn an_aborted_pass_leaves_no_trace() {
    let (_dir, mut engine) = tiny(Q8_0, &options());
    let tokens = Random(9).tokens(60);
    let expected = rows_in_chunks(&mut engine, SlotIndex(0), &tokens, &[30]);
    forward(&mut engine, &[part(0, 0, &tokens[..30], LogitsWanted::None)]);
    for layers in 1..=2 {
        let mut left = layers;
        let aborted = engine.forward(&[part(0, 30, &tokens[30..], LogitsWanted::All)], &mut || {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(aborted.unwrap().is_none());
        assert_eq!(engine.length(SlotIndex(0)), Position(30));
    }
    let rows = forward(&mut engine, &[part(0, 30, &tokens[30..], LogitsWanted::All)]);
    assert!(rows == expected[30..]);
}

#[test]
fn a_row_that_is_not_finite_is_named_and_not_given() {
    let dir = TempDir::new();
    let path = dir.file("bad.gguf");
    let mut file = File::tiny(F32, 7);
    // The embedding of token 5, so every row of a sequence from its position on.
    let row_bytes = 64 * 4;
    file.tensor("token_embd.weight").bytes[5 * row_bytes..][..4]
        .copy_from_slice(&f32::NAN.to_le_bytes());
    // An output matrix of its own, without the bad value.
    let mut output = File::tiny(F32, 8).tensor("token_embd.weight").clone();
    "output.weight".clone_into(&mut output.name);
    file.tensors.push(output);
    file.write(&path);
    let mut engine = open(&path, &options());
    let good = [TokenId(1), TokenId(2), TokenId(3)];
    let bad = [TokenId(1), TokenId(5)];
    let parts = [part(2, 0, &good, LogitsWanted::All), part(1, 0, &bad, LogitsWanted::All)];
    let error = engine.forward(&parts, &mut || ControlFlow::Continue(())).unwrap_err();
    match error {
        EngineError::NonFinite { part, position, .. } => {
            assert_eq!((part, position), (1, Position(1)));
        }
        other => panic!("{other}"),
    }
    assert_eq!(engine.length(SlotIndex(1)), Position(0));
    // The sequence beside it is not hurt.
    assert_eq!(forward(&mut engine, &parts[..1]).len(), 3);
}

#[test]
fn the_context_is_the_smaller_of_the_models_and_the_one_asked_for() {
    for (asked, expected) in
        [(0, support::CONTEXT_LEN), (100, 100), (100_000, support::CONTEXT_LEN)]
    {
        let (_dir, engine) = tiny(Q8_0, &EngineOptions { context_len: asked, ..options() });
        assert_eq!(engine.info().context_len, expected);
    }
}
