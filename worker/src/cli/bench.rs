//! `strata-worker bench`: tokens per second of prefill and of decode, from an empty context.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use shared::ids::{Position, TokenId};

use super::{ToolError, forced_instruction_set, numerics, print_line};
use crate::backend::Cpu;
use crate::engine::{Engine, EngineOptions, LogitsWanted, Numerics, Part, SlotIndex};

const SLOT: SlotIndex = SlotIndex(0);

/// Measures prefill and decode from an empty context.
#[derive(Debug, Clone, Args)]
pub struct Bench {
    /// Weight file in GGUF form; the first part of a split one.
    #[arg(short, long)]
    pub model: PathBuf,
    /// Tokens of prefill; 0 leaves it out.
    #[arg(short, long, default_value_t = 512)]
    pub prefill: u32,
    /// Tokens of decode, one at a time; 0 leaves it out.
    #[arg(short = 'n', long, default_value_t = 128)]
    pub decode: u32,
    /// Compute threads; 0 takes one per core.
    #[arg(short, long, default_value_t = 0)]
    pub threads: u32,
    /// In what numbers to compute: fast, careful or reference.
    #[arg(long, default_value = "fast", value_parser = numerics)]
    pub numerics: Numerics,
    /// Longest part computed in one pass.
    #[arg(long, default_value_t = 512)]
    pub prefill_chunk: u32,
    /// Runs of each; the median is given.
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

impl Bench {
    /// Measures and prints.
    ///
    /// # Errors
    ///
    /// [`ToolError`] if the model cannot be opened or computed.
    pub fn run(&self) -> Result<(), ToolError> {
        if self.prefill == 0 && self.decode == 0 {
            return Err(ToolError::usage("nothing to measure: both --prefill and --decode are 0"));
        }
        let start = Instant::now();
        let options = EngineOptions {
            context_len: 0,
            slots: 1,
            prefill_chunk: self.prefill_chunk,
            threads: self.threads,
            instruction_set: forced_instruction_set(),
            header_digest: None,
            numerics: self.numerics,
        };
        let mut engine = Engine::<Cpu>::open(&self.model, &options, &mut |_, _| ())?;
        let load = start.elapsed();
        let context_len = engine.info().context_len;
        if self.prefill.max(self.decode) > context_len {
            return Err(ToolError::usage(format!("the model's context is {context_len} tokens")));
        }
        self.measure_prefill(&mut engine, self.prefill.min(self.prefill_chunk))?;
        measure_decode(&mut engine, self.decode.min(1))?;
        let (mut prefill, mut decode) = (Vec::new(), Vec::new());
        for _ in 0..self.repeats {
            if self.prefill > 0 {
                prefill.push(rate(self.prefill, self.measure_prefill(&mut engine, self.prefill)?));
            }
            if self.decode > 0 {
                decode.push(rate(self.decode, measure_decode(&mut engine, self.decode)?));
            }
        }
        self.print(&engine, load, &prefill, &decode)
    }

    /// In chunks; the logits of each chunk's last token are computed.
    fn measure_prefill(&self, engine: &mut Engine<Cpu>, count: u32) -> Result<Duration, ToolError> {
        let tokens: Vec<_> = tokens(engine).take(count as usize).collect();
        let start = Instant::now();
        for chunk in tokens.chunks(self.prefill_chunk as usize) {
            pass(engine, chunk)?;
        }
        let elapsed = start.elapsed();
        engine.truncate(SLOT, Position(0));
        Ok(elapsed)
    }

    /// Of a part that was left out, the rate is null and the list of runs empty.
    fn print(
        &self,
        engine: &Engine<Cpu>,
        load: Duration,
        prefill: &[f64],
        decode: &[f64],
    ) -> Result<(), ToolError> {
        let info = engine.info();
        let (prefill_median, decode_median) = (median(prefill), median(decode));
        if self.json {
            let report = json!({
                "model": self.model.display().to_string(),
                "name": info.name,
                "arch": info.arch,
                "parameters": info.parameters,
                "weight_bytes": info.weight_bytes,
                "threads": info.threads,
                "instruction_set": info.instruction_set,
                "prefill_chunk": self.prefill_chunk,
                "repeats": self.repeats,
                "load_s": load.as_secs_f64(),
                "prefill_tokens": self.prefill,
                "prefill_tokens_per_s": prefill_median,
                "prefill_tokens_per_s_runs": prefill,
                "decode_tokens": self.decode,
                "decode_tokens_per_s": decode_median,
                "decode_tokens_per_s_runs": decode,
            });
            return print_line(&report.to_string());
        }
        print_line(&format!(
            "{}, {} threads, {}, loaded in {:.2} s",
            self.model.display(),
            info.threads,
            info.instruction_set,
            load.as_secs_f64()
        ))?;
        let show = |what: &str, count: u32, median: Option<f64>, runs: &[f64]| {
            let Some(median) = median else { return Ok(()) };
            let low = runs.iter().copied().fold(f64::INFINITY, f64::min);
            let high = runs.iter().copied().fold(0.0, f64::max);
            print_line(&format!(
                "{what} {count:>5} tokens: {median:>9.2} tokens/s  ({low:.2} to {high:.2})"
            ))
        };
        show("prefill", self.prefill, prefill_median, prefill)?;
        show("decode ", self.decode, decode_median, decode)
    }
}

fn measure_decode(engine: &mut Engine<Cpu>, count: u32) -> Result<Duration, ToolError> {
    let tokens: Vec<_> = tokens(engine).take(count as usize).collect();
    let start = Instant::now();
    for token in tokens {
        pass(engine, &[token])?;
    }
    let elapsed = start.elapsed();
    engine.truncate(SLOT, Position(0));
    Ok(elapsed)
}

fn pass(engine: &mut Engine<Cpu>, tokens: &[TokenId]) -> Result<(), ToolError> {
    let start = engine.length(SLOT);
    let part = Part { slot: SLOT, start, tokens, logits: LogitsWanted::Last };
    engine.forward(&[part], &mut || ControlFlow::Continue(()))?;
    Ok(())
}

/// Token ids without a pattern, the same in every run.
fn tokens(engine: &Engine<Cpu>) -> impl Iterator<Item = TokenId> + use<> {
    let vocab_size = u64::from(engine.info().vocab_size);
    let mut state = 1_u64;
    std::iter::repeat_with(move || {
        // Constants of Knuth's MMIX generator; the upper bits are the good ones.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let drawn = (state >> 33) % vocab_size;
        TokenId(u32::try_from(drawn).expect("below the vocabulary size, a u32"))
    })
}

fn rate(count: u32, elapsed: Duration) -> f64 {
    f64::from(count) / elapsed.as_secs_f64().max(1e-9)
}

/// `None` if nothing was measured.
fn median(runs: &[f64]) -> Option<f64> {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let high = *sorted.get(middle).filter(|&&rate| rate > 0.0)?;
    Some(if sorted.len() % 2 == 1 { high } else { f64::midpoint(sorted[middle - 1], high) })
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middle_runs() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[0.0, 0.0]), None);
    }
}
