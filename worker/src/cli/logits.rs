//! `strata-worker logits`: every row of logits of a sequence, as little-endian f32: what any
//! outside check needs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use shared::ids::TokenId;

use super::{ToolError, forced_instruction_set, note, numerics, token_ids};
use crate::backend::Cpu;
use crate::engine::{Engine, EngineOptions, LogitsWanted, Numerics, Part, SlotIndex};

const SLOT: SlotIndex = SlotIndex(0);

/// Tokens of a pass where nothing else is asked for.
const CHUNK: u32 = 512;

/// Writes the logits of every token of a sequence.
#[derive(Debug, Clone, Args)]
pub struct Logits {
    /// Weight file in GGUF form; the first part of a split one.
    #[arg(short, long)]
    pub model: PathBuf,
    /// The sequence's token ids, separated by white space or commas.
    #[arg(long)]
    pub tokens: PathBuf,
    /// Lengths of the chunks in which it is read; the last one repeats.
    #[arg(long, value_delimiter = ',', default_values_t = [CHUNK],
          value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: Vec<u32>,
    /// In what numbers to compute: fast, careful or reference.
    #[arg(long, default_value = "fast", value_parser = numerics)]
    pub numerics: Numerics,
    /// Compute threads; 0 takes one per core.
    #[arg(short, long, default_value_t = 0)]
    pub threads: u32,
    /// Where the rows go: f32, little-endian, `(n_tokens, vocab_size)`.
    #[arg(long)]
    pub out: PathBuf,
}

impl Logits {
    /// Computes and writes.
    ///
    /// # Errors
    ///
    /// [`ToolError`] if the ids or the model cannot be read, or the rows not be written.
    pub fn run(&self) -> Result<(), ToolError> {
        let tokens = token_ids::read(&self.tokens)?;
        let options = EngineOptions {
            slots: 1,
            prefill_chunk: self.chunks.iter().copied().max().unwrap_or(CHUNK),
            threads: self.threads,
            instruction_set: forced_instruction_set(),
            numerics: self.numerics,
            ..EngineOptions::default()
        };
        let mut engine = Engine::<Cpu>::open(&self.model, &options, &mut |_, _| ())?;
        let info = engine.info();
        super::warn(info);
        token_ids::check(&tokens, info.vocab_size)?;
        if tokens.len() > info.context_len as usize {
            return Err(ToolError::usage(format!(
                "--tokens: {} ids do not fit the model's context of {}",
                tokens.len(),
                info.context_len
            )));
        }
        let file = File::create(&self.out).map_err(|error| self.not_written(&error))?;
        let mut file = BufWriter::new(file);
        for chunk in self.cut(&tokens, engine.prefill_chunk()) {
            self.compute(&mut engine, chunk, &mut file)?;
        }
        file.flush().map_err(|error| self.not_written(&error))?;
        let vocab_size = engine.info().vocab_size;
        note(&format!("{} rows of {vocab_size} logits", tokens.len()));
        Ok(())
    }

    /// The sequence in chunks.
    fn cut<'a>(&self, mut tokens: &'a [TokenId], most: usize) -> Vec<&'a [TokenId]> {
        let mut lengths = self.chunks.iter().map(|&length| length as usize);
        let (mut chunks, mut length) = (Vec::new(), CHUNK as usize);
        while !tokens.is_empty() {
            length = lengths.next().unwrap_or(length);
            let (chunk, rest) = tokens.split_at(length.min(most).min(tokens.len()));
            chunks.push(chunk);
            tokens = rest;
        }
        chunks
    }

    fn compute(
        &self,
        engine: &mut Engine<Cpu>,
        tokens: &[TokenId],
        file: &mut impl Write,
    ) -> Result<(), ToolError> {
        let start = engine.length(SLOT);
        let part = Part { slot: SLOT, start, tokens, logits: LogitsWanted::All };
        let logits = engine.forward(&[part], &mut || ControlFlow::Continue(()))?;
        for row in logits.expect("the hook never breaks").iter() {
            let bytes: Vec<u8> = row.values.iter().flat_map(|value| value.to_le_bytes()).collect();
            file.write_all(&bytes).map_err(|error| self.not_written(&error))?;
        }
        Ok(())
    }

    fn not_written(&self, error: &std::io::Error) -> ToolError {
        ToolError::usage(format!("--out {}: {error}", self.out.display()))
    }
}
