//! From a row of logits to a token.
//!
//! In this order: `logit_bias`; here log-probabilities are taken; penalties; at temperature 0 the
//! best token, else `top_k`, `top_p`, `min_p`, temperature and a draw. (The order of llama.cpp's
//! default chain: `top_p` and `min_p` look at probabilities before the temperature.) Wherever two
//! tokens are equally likely the lower id counts as better. Every truncation keeps the best token.
//!
//! The draw inverts the cumulative distribution, in the order of ids, at a number that depends on
//! (seed, choice, position) alone; see [`philox`]. Nothing is kept between draws.
//!
//! *Non-finite values.* A row that holds one is refused. What a bias or a penalty pushes out of
//! f32's range stays at its end: a request's settings cannot make a row look broken.

use thiserror::Error;

use super::lanes::dispatch;
use crate::isa::Isa;
use adjust::{biased, in_range, penalise};
use candidates::Candidates;
use passes::{ExpSums, Survey, WEIGHTS_MAX, Weights};

mod adjust;
mod candidates;
mod params;
mod passes;
pub mod philox;

pub use params::{SampleParams, SeenTokens};

/// The lowest log-probability reported. Whatever is less likely is reported as this.
pub const LOGPROB_MIN: f32 = -9999.0;

/// A drawn token.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Its id.
    pub token: u32,
    /// Its log-probability and the best tokens', if asked for.
    pub logprobs: Option<DrawnLogprobs>,
}

/// Log-probabilities of the row after `logit_bias`: finite, from [`LOGPROB_MIN`] to 0.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawnLogprobs {
    /// Of the drawn token.
    pub chosen: f32,
    /// Of the best tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// A row from which nothing may be sampled.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("logit {index} is {value}: nothing is sampled from such a row")]
pub struct NonFiniteLogit {
    /// The first such element.
    pub index: usize,
    /// What it is.
    pub value: f32,
}

/// Memory that draws reuse.
#[derive(Debug, Default)]
pub struct SampleScratch {
    row: Vec<f32>,
    maxima: Vec<f32>,
    ids: Vec<u32>,
    sums: Vec<f64>,
    candidates: Candidates,
}

/// Draws the token for `position` from one row of logits.
///
/// # Shapes
///
/// `logits`: `(vocab_size)`.
///
/// # Errors
///
/// [`NonFiniteLogit`] if the row holds a NaN or an infinity.
///
/// # Panics
///
/// When the row is empty.
pub fn sample(
    isa: Isa,
    logits: &[f32],
    params: &SampleParams,
    seen: SeenTokens<'_>,
    position: u32,
    scratch: &mut SampleScratch,
) -> Result<Drawn, NonFiniteLogit> {
    assert!(!logits.is_empty(), "sample: an empty row");
    let SampleScratch { row, maxima, ids, sums, candidates } = scratch;
    let mut best = survey(isa, logits, maxima)?;
    let mut values = logits;
    if !params.logit_bias.is_empty() || params.needs_seen() {
        row.clear();
        row.extend_from_slice(logits);
        for &(token, bias) in &params.logit_bias {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit = in_range(*logit + bias);
            }
        }
        best = survey(isa, row, maxima)?;
    }
    if !params.logit_bias.is_empty() {
        values = row;
    }
    let mut report = params.n_logprobs.map(|n| {
        let normaliser = Normaliser::new(isa, values, values[best], sums);
        candidates.keep_best(values, maxima, n);
        let top = candidates.sorted().map(|(id, logit)| (id, normaliser.logprob(logit)));
        (DrawnLogprobs { chosen: 0.0, top: top.collect() }, normaliser)
    });
    if params.needs_seen() {
        penalise(row, params, seen, ids);
        best = survey(isa, row, maxima)?;
        values = row;
    }
    let index = if params.temperature > 0.0 {
        let uniform = philox::uniform(params.seed, params.choice, position);
        draw(isa, values, maxima, best, params, uniform, candidates, sums)
    } else {
        best
    };
    if let Some((logprobs, normaliser)) = &mut report {
        logprobs.chosen = normaliser.logprob(biased(logits, params, index));
    }
    let token = u32::try_from(index).expect("vocabularies are far smaller than 2^32");
    Ok(Drawn { token, logprobs: report.map(|(logprobs, _)| logprobs) })
}

/// Index of the best element; fills `maxima` with the greatest of each block.
fn survey(isa: Isa, row: &[f32], maxima: &mut Vec<f32>) -> Result<usize, NonFiniteLogit> {
    if !dispatch(isa, Survey { row, maxima }) {
        let index = row.iter().position(|x| !x.is_finite()).unwrap_or(0);
        return Err(NonFiniteLogit { index, value: row[index] });
    }
    let mut block = 0;
    for (index, &x) in maxima.iter().enumerate() {
        if x > maxima[block] {
            block = index;
        }
    }
    let start = block * passes::BLOCK;
    let place = row[start..].iter().position(|&x| x == maxima[block]).unwrap_or(0);
    Ok(start + place)
}

/// The sum over a row by which exponentials are divided.
#[derive(Debug, Clone, Copy)]
struct Normaliser {
    greatest: f32,
    ln_sum: f64,
}

impl Normaliser {
    fn new(isa: Isa, row: &[f32], greatest: f32, sums: &mut Vec<f64>) -> Self {
        let total = dispatch(isa, ExpSums { values: row, greatest, temperature: 1.0, sums });
        Self { greatest, ln_sum: total.ln() }
    }

    fn logprob(self, logit: f32) -> f32 {
        let exact = f64::from(logit) - f64::from(self.greatest) - self.ln_sum;
        #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
        let rounded = exact.max(f64::from(LOGPROB_MIN)) as f32;
        rounded.min(0.0)
    }
}

/// Truncates and draws; gives back an index into `row`, whose best element is at `best`.
fn draw(
    isa: Isa,
    row: &[f32],
    maxima: &[f32],
    best: usize,
    params: &SampleParams,
    uniform: f64,
    candidates: &mut Candidates,
    sums: &mut Vec<f64>,
) -> usize {
    let greatest = row[best];
    let temperature = params.temperature;
    if candidates.truncate(isa, row, maxima, greatest, params, sums) {
        let place = invert(isa, candidates.values(), greatest, temperature, uniform, sums);
        candidates.id(place) as usize
    } else {
        invert(isa, row, greatest, temperature, uniform, sums)
    }
}

/// The first index at which the cumulative sum of `exp((value - greatest) / temperature)` exceeds
/// `uniform` times the whole sum.
fn invert(
    isa: Isa,
    values: &[f32],
    greatest: f32,
    temperature: f32,
    uniform: f64,
    sums: &mut Vec<f64>,
) -> usize {
    let total = dispatch(isa, ExpSums { values, greatest, temperature, sums });
    let target = uniform * total;
    let mut before = 0.0;
    let mut block = 0;
    for (index, &sum) in sums.iter().enumerate() {
        // Rounding may leave the target just above the last sum: then the last that has any is it.
        if sum > 0.0 {
            block = index;
            if before + sum > target {
                break;
            }
        }
        before += sum;
    }
    let start = block * WEIGHTS_MAX;
    let values = &values[start..(start + WEIGHTS_MAX).min(values.len())];
    let mut weights = [0.0; WEIGHTS_MAX];
    dispatch(isa, Weights { values, greatest, temperature, out: &mut weights[..values.len()] });
    let mut cumulative = sums[..block].iter().sum::<f64>();
    let mut place = 0;
    for (index, &weight) in weights.iter().enumerate() {
        if weight > 0.0 {
            place = index;
            cumulative += f64::from(weight);
            if cumulative > target {
                break;
            }
        }
    }
    start + place
}
