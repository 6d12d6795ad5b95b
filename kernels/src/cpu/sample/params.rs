//! What a draw depends on, beside its row of logits.

/// How to draw. Numbers must be finite.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleParams {
    /// Key of the generator.
    pub seed: u64,
    /// Which of several draws with one seed this is.
    pub choice: u32,
    /// Divides the logits; 0 or less takes the most likely token.
    pub temperature: f32,
    /// Keep the k most likely; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of the most likely whose probabilities reach p; 1 keeps all.
    pub top_p: f32,
    /// Keep what is at least p times as likely as the best; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted from the logits of emitted tokens, times their count; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted from the logits of emitted tokens, once; 0 is off.
    pub presence_penalty: f32,
    /// Added to logits. Ids beyond the row are ignored.
    pub logit_bias: Vec<(u32, f32)>,
    /// How many of the best tokens' log-probabilities to report; `None` reports none at all.
    pub n_logprobs: Option<usize>,
}

impl Default for SampleParams {
    /// The most likely token, nothing reported.
    fn default() -> Self {
        Self {
            seed: 0,
            choice: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            n_logprobs: None,
        }
    }
}

impl SampleParams {
    /// Whether tokens that were seen before matter to a draw.
    #[must_use]
    pub fn needs_seen(&self) -> bool {
        self.repeat_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

/// Tokens that the penalties look at, in any order. Both may be empty if
/// [`SampleParams::needs_seen`] says no.
#[derive(Debug, Clone, Copy, Default)]
pub struct SeenTokens<'a> {
    /// The last few of the sequence, for the repeat penalty.
    pub recent: &'a [u32],
    /// All emitted ones, for the frequency and presence penalties.
    pub emitted: &'a [u32],
}
