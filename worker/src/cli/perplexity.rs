//! `strata-worker perplexity`: how well a model predicts a text, counted as llama-perplexity does.
//!
//! The text's tokens are cut into windows of `context` tokens, each computed from an empty
//! context; a rest is left out. The first half of a window is context only. Each position of the
//! second half but the last scores the token after it. Perplexity is `exp` of the mean of the
//! negative log-probabilities. If the model's tokenizer adds a beginning-of-sequence token, it
//! stands first in the text and in place of each window's first token.
//!
//! The worker knows no text: `strata-supervisor tokenize` beside it turns the text into ids.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;
use serde_json::json;
use shared::ids::{Position, TokenId};

use super::{ToolError, forced_instruction_set, note, numerics, print_line, token_ids};
use crate::backend::Cpu;
use crate::engine::{Engine, EngineOptions, LogitsWanted, Numerics, Part, SlotIndex};

const SLOT: SlotIndex = SlotIndex(0);
const PREFILL_CHUNK: u32 = 512;
/// Positions whose logits are held at once; a row has one number per vocabulary entry.
const SCORED_AT_ONCE: usize = 64;
const TOKENIZER: &str = "strata-supervisor";

/// Measures how well the model predicts a text.
#[derive(Debug, Clone, Args)]
pub struct Perplexity {
    /// Weight file in GGUF form; the first part of a split one.
    #[arg(short, long)]
    pub model: PathBuf,
    /// The text, UTF-8. Tokenized by the strata-supervisor beside this program.
    #[arg(short, long, required_unless_present = "tokens", conflicts_with = "tokens")]
    pub file: Option<PathBuf>,
    /// The text's token ids instead, separated by white space or commas, without special tokens.
    #[arg(long)]
    pub tokens: Option<PathBuf>,
    /// Tokens of a window.
    #[arg(short, long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    pub context: u32,
    /// Compute threads; 0 takes one per core.
    #[arg(short, long, default_value_t = 0)]
    pub threads: u32,
    /// In what numbers to compute: fast, careful or reference.
    #[arg(long, default_value = "fast", value_parser = numerics)]
    pub numerics: Numerics,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Negative log-probabilities so far.
#[derive(Debug, Default, Clone, Copy)]
struct Score {
    sum: f64,
    sum_of_squares: f64,
    count: u32,
}

impl Score {
    fn add(&mut self, nll: f64) {
        self.sum += nll;
        self.sum_of_squares += nll * nll;
        self.count += 1;
    }

    fn perplexity(self) -> f64 {
        (self.sum / f64::from(self.count)).exp()
    }

    /// Standard error of the perplexity.
    fn error(self) -> f64 {
        let count = f64::from(self.count);
        let mean = self.sum / count;
        let variance = (self.sum_of_squares / count - mean * mean).max(0.0);
        self.perplexity() * (variance / (count - 1.0).max(1.0)).sqrt()
    }
}

impl Perplexity {
    /// Measures and prints.
    ///
    /// # Errors
    ///
    /// [`ToolError`] if the text or the model cannot be read, or the text is too short.
    pub fn run(&self) -> Result<(), ToolError> {
        let mut tokens = self.read_tokens()?;
        let options = EngineOptions {
            context_len: self.context,
            slots: 1,
            prefill_chunk: PREFILL_CHUNK,
            threads: self.threads,
            instruction_set: forced_instruction_set(),
            header_digest: None,
            numerics: self.numerics,
        };
        let mut engine = Engine::<Cpu>::open(&self.model, &options, &mut |_, _| ())?;
        if let Some(bos) = engine.info().bos {
            tokens.insert(0, bos);
        }
        self.check(&engine, &tokens)?;
        let window_len = self.context as usize;
        let n_windows = tokens.len() / window_len;
        let start = Instant::now();
        let mut score = Score::default();
        for (index, window) in tokens.chunks_exact(window_len).enumerate() {
            score_window(&mut engine, window, &mut score)?;
            let perplexity = score.perplexity();
            note(&format!("window {} of {n_windows}: perplexity {perplexity:.4}", index + 1));
        }
        self.print(&engine, score, n_windows, start.elapsed().as_secs_f64())
    }

    fn check(&self, engine: &Engine<Cpu>, tokens: &[TokenId]) -> Result<(), ToolError> {
        let info = engine.info();
        if info.context_len < self.context {
            let most = info.context_len;
            return Err(ToolError::usage(format!("--context: the model's context is {most}")));
        }
        token_ids::check(tokens, info.vocab_size)?;
        let least = 2 * self.context as usize;
        if tokens.len() < least {
            return Err(ToolError::usage(format!(
                "the text is {} tokens long; at least two windows, {least} tokens, are needed",
                tokens.len()
            )));
        }
        Ok(())
    }

    fn read_tokens(&self) -> Result<Vec<TokenId>, ToolError> {
        match (&self.tokens, &self.file) {
            (Some(path), _) => token_ids::read(path),
            (None, Some(path)) => token_ids::parse(TOKENIZER, &self.tokenize(path)?),
            (None, None) => Err(ToolError::usage("give --file or --tokens")),
        }
    }

    /// Asks the supervisor's program beside our own for the token ids.
    fn tokenize(&self, text: &Path) -> Result<String, ToolError> {
        let hint = "build it, or give the ids with --tokens";
        let own = std::env::current_exe().map_err(|error| {
            ToolError::usage(format!("where this program lies: {error}; {hint}"))
        })?;
        let program = own.with_file_name(TOKENIZER);
        let mut command = Command::new(&program);
        command.arg("tokenize").arg("--model").arg(&self.model).arg("--file").arg(text);
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| {
            ToolError::usage(format!("cannot run {}: {error}; {hint}", program.display()))
        })?;
        if !output.status.success() {
            let status = output.status;
            return Err(ToolError::usage(format!("{} tokenize: {status}", program.display())));
        }
        String::from_utf8(output.stdout)
            .map_err(|_| ToolError::usage(format!("{TOKENIZER} tokenize wrote no token ids")))
    }

    fn print(
        &self,
        engine: &Engine<Cpu>,
        score: Score,
        n_windows: usize,
        elapsed_s: f64,
    ) -> Result<(), ToolError> {
        let info = engine.info();
        let (perplexity, error) = (score.perplexity(), score.error());
        if self.json {
            let report = json!({
                "model": self.model.display().to_string(),
                "name": info.name,
                "perplexity": perplexity,
                "perplexity_error": error,
                "context": self.context,
                "windows": n_windows,
                "tokens_scored": score.count,
                "threads": info.threads,
                "instruction_set": info.instruction_set,
                "elapsed_s": elapsed_s,
            });
            return print_line(&report.to_string());
        }
        let count = score.count;
        print_line(&format!("perplexity {perplexity:.4} +/- {error:.4}, {count} tokens scored"))
    }
}

fn score_window(
    engine: &mut Engine<Cpu>,
    window: &[TokenId],
    score: &mut Score,
) -> Result<(), ToolError> {
    engine.truncate(SLOT, Position(0));
    let mut window = window.to_vec();
    if let Some(bos) = engine.info().bos {
        window[0] = bos;
    }
    let half = window.len() / 2;
    for chunk in window[..half].chunks(PREFILL_CHUNK as usize) {
        pass(engine, chunk, LogitsWanted::None)?;
    }
    // The last token has no successor in the window.
    let scored = &window[half..window.len() - 1];
    let targets = window[half + 1..].chunks(SCORED_AT_ONCE);
    for (chunk, targets) in scored.chunks(SCORED_AT_ONCE).zip(targets) {
        let start = engine.length(SLOT);
        let part = Part { slot: SLOT, start, tokens: chunk, logits: LogitsWanted::All };
        let logits = engine.forward(&[part], &mut || ControlFlow::Continue(()))?;
        let logits = logits.expect("the hook never breaks");
        for (row, target) in logits.iter().zip(targets) {
            score.add(negative_log_probability(row.values, *target));
        }
    }
    Ok(())
}

fn pass(
    engine: &mut Engine<Cpu>,
    tokens: &[TokenId],
    logits: LogitsWanted,
) -> Result<(), ToolError> {
    let part = Part { slot: SLOT, start: engine.length(SLOT), tokens, logits };
    engine.forward(&[part], &mut || ControlFlow::Continue(()))?;
    Ok(())
}

/// `-ln softmax(logits)[target]`, in f64.
fn negative_log_probability(logits: &[f32], target: TokenId) -> f64 {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
    most + sum.ln() - f64::from(logits[target.index()])
}

#[cfg(test)]
mod tests {
    use shared::ids::TokenId;

    use super::{Score, negative_log_probability};

    #[test]
    fn equal_logits_share_the_probability() {
        let nll = negative_log_probability(&[3.0; 8], TokenId(5));
        assert!((nll - 8_f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn perplexity_of_a_fair_die_is_its_sides() {
        let mut score = Score::default();
        (0..10).for_each(|_| score.add(6_f64.ln()));
        assert!((score.perplexity() - 6.0).abs() < 1e-9);
        assert!(score.error() < 1e-6);
    }
}
