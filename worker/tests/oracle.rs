//! Is a tiny `qwen4exp` model with every mechanism of the real one right to what transformers
//! answers, in every block format of its files and however its prompts are cut?
//!
//! The answers were made in float32 from the same files, expanded. The prompts were picked so that
//! no choice of an expert or a block hangs on rounding, so every kept position is compared.

use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::PathBuf;

use npyz::npz::NpzArchive;
use shared::ids::{Position, TokenId};
use strata_worker::backend::Cpu;
use strata_worker::engine::{Engine, EngineOptions, LogitsWanted, Numerics, Part, SlotIndex};

/// In a logit; they have a standard deviation of about 2. Transformers parts from itself by up to
/// 2.3e-4 when a prompt is cut otherwise.
const TOLERANCE: f32 = 5.0e-4;

const PROMPTS: [usize; 7] = [1, 7, 32, 65, 357, 423, 1000];
const FILES: [(&str, &str); 3] =
    [("tiny-f16", "ref"), ("tiny-q8_0", "ref-q8_0"), ("tiny-q4_k_m", "ref-q4_k_m")];
const CUTS: [&[usize]; 3] = [&[1024], &[1], &[1, 3, 64, 65, 128, 250]];
const SLOT: SlotIndex = SlotIndex(0);

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "tests", "fixtures", "oracle", name].iter().collect()
}

struct Answers {
    tokens: Vec<TokenId>,
    positions: Vec<usize>,
    /// *Shapes*: `(positions, vocab_size)`.
    logits: Vec<f32>,
}

fn integers(archive: &mut NpzArchive<BufReader<File>>, name: &str) -> Vec<u32> {
    let array = archive.by_name(name).unwrap().unwrap_or_else(|| panic!("no array {name}"));
    let wide = array.dtype().descr().contains("i8");
    let numbers: Vec<i64> = match wide {
        true => array.into_vec::<i64>().unwrap(),
        false => array.into_vec::<i32>().unwrap().into_iter().map(i64::from).collect(),
    };
    numbers.into_iter().map(|number| u32::try_from(number).unwrap()).collect()
}

fn answers(folder: &str, prompt: usize) -> Answers {
    let path = fixture(folder).join(format!("p{prompt:04}.npz"));
    let mut archive = NpzArchive::open(path).unwrap();
    Answers {
        tokens: integers(&mut archive, "tokens").into_iter().map(TokenId).collect(),
        positions: integers(&mut archive, "positions").iter().map(|&p| p as usize).collect(),
        logits: archive.by_name("logits").unwrap().unwrap().into_vec::<f32>().unwrap(),
    }
}

/// All rows of logits of a sequence that is read in chunks of these lengths, the last repeating.
fn rows(engine: &mut Engine<Cpu>, tokens: &[TokenId], cut: &[usize]) -> Vec<f32> {
    engine.truncate(SLOT, Position(0));
    let (mut rows, mut rest) = (Vec::new(), tokens);
    let mut lengths = cut.iter().chain(std::iter::repeat(cut.last().unwrap()));
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(rest.len().min(*lengths.next().unwrap()));
        let start = engine.length(SLOT);
        let part = Part { slot: SLOT, start, tokens: chunk, logits: LogitsWanted::All };
        let logits = engine.forward(&[part], &mut || ControlFlow::Continue(())).unwrap().unwrap();
        logits.iter().for_each(|row| rows.extend_from_slice(row.values));
        rest = after;
    }
    rows
}

#[test]
fn every_kept_position_is_as_transformers_computes_it() {
    let options = EngineOptions {
        slots: 1,
        prefill_chunk: 1024,
        threads: 2,
        numerics: Numerics::Reference,
        ..EngineOptions::default()
    };
    for (file, folder) in FILES {
        let path = fixture(&format!("{file}.gguf"));
        let mut engine = Engine::<Cpu>::open(&path, &options, &mut |_, _| ()).unwrap();
        // One file keeps a kind of tensor that should not be in 4 bits.
        let warnings = engine.info().warnings.join("; ");
        assert_eq!(warnings.contains("_inject.weight"), file == "tiny-q4_k_m", "{warnings}");
        let vocab_size = engine.info().vocab_size as usize;
        for prompt in PROMPTS {
            let answers = answers(folder, prompt);
            assert_eq!(answers.tokens.len(), prompt);
            assert_eq!(answers.logits.len(), answers.positions.len() * vocab_size);
            let mut first: Option<Vec<f32>> = None;
            for cut in CUTS {
                let rows = rows(&mut engine, &answers.tokens, cut);
                for (&position, expected) in
                    answers.positions.iter().zip(answers.logits.chunks_exact(vocab_size))
                {
                    let row = &rows[position * vocab_size..][..vocab_size];
                    let far = row.iter().zip(expected).map(|(y, x)| (y - x).abs());
                    let most = far.fold(0.0, f32::max);
                    assert!(most <= TOLERANCE, "{file}, prompt {prompt}, {position}: {most}");
                }
                let same = first.get_or_insert_with(|| rows.clone());
                assert!(*same == rows, "{file}, prompt {prompt}: a cut at {cut:?} changed bits");
            }
        }
    }
}
