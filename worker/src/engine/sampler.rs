//! From a row of logits to a token: the protocol's sampling settings, put in terms of the
//! kernels' `sample` op.
//!
//! A draw depends on (seed, choice, position) and that row's logits alone; penalties also on the
//! tokens before it. Nothing is kept between draws, so a replay needs no generator state.

use kernels::cpu::sample::{
    DrawnLogprobs, NonFiniteLogit, SampleParams, SampleScratch, SeenTokens, sample,
};
use kernels::isa::Isa;
use shared::ids::TokenId;
use shared::protocol::{Logprobs, Sampled, Sampling};

/// Sampling settings that were judged good.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    params: SampleParams,
    /// How many of the last tokens the repeat penalty looks at.
    penalty_last_n: usize,
}

impl Settings {
    /// Judges settings before a session is taken in.
    ///
    /// # Errors
    ///
    /// Names the setting and the range it must lie in.
    pub fn new(sampling: &Sampling, vocab_size: u32) -> Result<Self, String> {
        sampling.check(vocab_size)?;
        let bias = |&(token, bias): &(TokenId, f32)| (token.0, bias);
        let params = SampleParams {
            seed: sampling.seed,
            choice: sampling.choice,
            temperature: sampling.temperature,
            top_k: sampling.top_k as usize,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repeat_penalty: sampling.repeat_penalty,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            logit_bias: sampling.logit_bias.iter().map(bias).collect(),
            n_logprobs: sampling.logprobs.map(|count| count as usize),
        };
        Ok(Self { params, penalty_last_n: sampling.penalty_last_n as usize })
    }
}

/// What a draw depends on, beside the logits.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    /// How to draw.
    pub settings: &'a Settings,
    /// Prompt, then emitted tokens. The draw is for the position after the last.
    pub tokens: &'a [TokenId],
    /// How many of the tokens are the prompt.
    pub prompt_len: usize,
}

/// Draws tokens. Holds memory that draws reuse, and nothing that one leaves to the next.
#[derive(Debug)]
pub struct Sampler {
    isa: Isa,
    scratch: SampleScratch,
    /// Ids of the tokens that penalties look at.
    seen: Vec<u32>,
}

impl Sampler {
    /// A sampler whose kernels use the instruction set named, as the engine names its own.
    #[must_use]
    pub fn new(instruction_set: &str) -> Self {
        let isa = Isa::from_name(instruction_set).unwrap_or_else(Isa::detect);
        Self { isa, scratch: SampleScratch::default(), seen: Vec::new() }
    }

    /// The token for the position after the last of `draw.tokens`.
    ///
    /// *Shapes*: `logits` is one row, `(vocab_size)`.
    ///
    /// # Errors
    ///
    /// [`NonFiniteLogit`] if the row holds a NaN or an infinity; nothing is then sampled.
    pub fn draw(&mut self, draw: &Draw<'_>, logits: &[f32]) -> Result<Sampled, NonFiniteLogit> {
        let Draw { settings, tokens, prompt_len } = *draw;
        let mut recent = 0..0;
        let mut emitted = 0..0;
        self.seen.clear();
        if settings.params.needs_seen() {
            self.seen.extend(tokens.iter().map(|token| token.0));
            recent = tokens.len().saturating_sub(settings.penalty_last_n)..tokens.len();
            emitted = prompt_len..tokens.len();
        }
        let seen = SeenTokens { recent: &self.seen[recent], emitted: &self.seen[emitted] };
        let position = u32::try_from(tokens.len()).expect("bounded by CONTEXT_LEN_MAX");
        let params = &settings.params;
        let drawn = sample(self.isa, logits, params, seen, position, &mut self.scratch)?;
        let logprobs = |DrawnLogprobs { chosen, top }: DrawnLogprobs| {
            let top = top.into_iter().map(|(id, value)| (TokenId(id), value)).collect();
            Box::new(Logprobs { chosen, top })
        };
        Ok(Sampled { token: TokenId(drawn.token), logprobs: drawn.logprobs.map(logprobs) })
    }
}

#[cfg(test)]
mod tests {
    use super::{Draw, Sampler, Settings};
    use shared::ids::TokenId;
    use shared::protocol::Sampling;

    const LOGITS: [f32; 4] = [1.0, 2.0, 2.5, 0.0];

    fn draw(sampling: &Sampling, tokens: &[u32], prompt_len: usize) -> shared::protocol::Sampled {
        let settings = Settings::new(sampling, 4).unwrap();
        let tokens: Vec<_> = tokens.iter().copied().map(TokenId).collect();
        let draw = Draw { settings: &settings, tokens: &tokens, prompt_len };
        Sampler::new("portable").draw(&draw, &LOGITS).unwrap()
    }

    #[test]
    fn penalties_tell_prompt_from_emitted_and_look_back_as_far_as_told() {
        let none = Sampling::default();
        assert_eq!(draw(&none, &[2, 2], 1).token, TokenId(2));
        let presence = Sampling { presence_penalty: 1.0, ..Sampling::default() };
        assert_eq!(draw(&presence, &[2, 0], 1).token, TokenId(2), "2 is of the prompt");
        assert_eq!(draw(&presence, &[0, 2], 1).token, TokenId(1), "2 was emitted");
        let repeat = Sampling { repeat_penalty: 2.0, penalty_last_n: 2, ..Sampling::default() };
        assert_eq!(draw(&repeat, &[0, 2, 3], 3).token, TokenId(1), "2 is among the last two");
        assert_eq!(draw(&repeat, &[2, 0, 3], 3).token, TokenId(2), "2 is further back");
    }

    #[test]
    fn draws_differ_by_seed_choice_and_position_and_by_nothing_else() {
        let warm =
            |seed, choice| Sampling { seed, choice, temperature: 3.0, ..Sampling::default() };
        let text = |sampling: &Sampling, filler: u32| -> Vec<u32> {
            (1..60).map(|n| draw(sampling, &vec![filler; n], 1).token.0).collect()
        };
        let base = text(&warm(1, 0), 0);
        assert_eq!(base, text(&warm(1, 0), 3));
        assert_ne!(base, text(&warm(2, 0), 0));
        assert_ne!(base, text(&warm(1, 1), 0));
        assert!(base.iter().any(|token| *token != base[0]));
    }

    #[test]
    fn logprobs_are_reported_as_asked() {
        let sampling = Sampling { logprobs: Some(2), ..Sampling::default() };
        let logprobs = draw(&sampling, &[0], 1).logprobs.unwrap();
        assert_eq!(logprobs.top.iter().map(|(token, _)| token.0).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(logprobs.top[0].1.to_bits(), logprobs.chosen.to_bits());
        assert!(draw(&Sampling::default(), &[0], 1).logprobs.is_none());
    }

    #[test]
    fn a_row_that_is_not_finite_gives_no_token() {
        let settings = Settings::new(&Sampling::default(), 4).unwrap();
        let draw = Draw { settings: &settings, tokens: &[TokenId(0)], prompt_len: 1 };
        let error = Sampler::new("portable").draw(&draw, &[0.0, f32::NAN, 1.0]).unwrap_err();
        assert_eq!(error.index, 1);
    }

    #[test]
    fn bad_settings_are_named() {
        let cases = [
            (Sampling { temperature: f32::NAN, ..Sampling::default() }, "temperature"),
            (Sampling { temperature: -1.0, ..Sampling::default() }, "temperature"),
            (Sampling { top_p: 0.0, ..Sampling::default() }, "top_p"),
            (Sampling { top_p: 1.5, ..Sampling::default() }, "top_p"),
            (Sampling { min_p: -0.1, ..Sampling::default() }, "min_p"),
            (Sampling { repeat_penalty: 0.0, ..Sampling::default() }, "repeat_penalty"),
            (Sampling { presence_penalty: f32::INFINITY, ..Sampling::default() }, "presence"),
            (Sampling { logit_bias: vec![(TokenId(4), 1.0)], ..Sampling::default() }, "token 4"),
            (Sampling { logit_bias: vec![(TokenId(1), f32::NAN)], ..Sampling::default() }, "NaN"),
            (Sampling { logprobs: Some(21), ..Sampling::default() }, "logprobs"),
        ];
        for (sampling, expected) in cases {
            let error = Settings::new(&sampling, 4).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
