//! What a request's settings add to logits and take from them.

use super::params::{SampleParams, SeenTokens};

/// Keeps what a setting pushed out of f32's range at its end.
pub(super) fn in_range(x: f32) -> f32 {
    x.clamp(f32::MIN, f32::MAX)
}

/// The element after `logit_bias`.
pub(super) fn biased(logits: &[f32], params: &SampleParams, index: usize) -> f32 {
    let mine = params.logit_bias.iter().filter(|(token, _)| *token as usize == index);
    mine.fold(logits[index], |logit, (_, bias)| in_range(logit + bias))
}

/// Penalties as llama.cpp and the OpenAI API define them.
pub(super) fn penalise(
    row: &mut [f32],
    params: &SampleParams,
    seen: SeenTokens<'_>,
    ids: &mut Vec<u32>,
) {
    let mut runs = |tokens: &[u32], change: &dyn Fn(f32, f32) -> f32| {
        ids.clear();
        ids.extend_from_slice(tokens);
        ids.sort_unstable();
        for run in ids.chunk_by(|a, b| a == b) {
            if let Some(logit) = row.get_mut(run[0] as usize) {
                #[expect(clippy::cast_precision_loss, reason = "a count below 2^24")]
                let count = run.len() as f32;
                *logit = in_range(change(*logit, count));
            }
        }
    };
    let repeat = params.repeat_penalty;
    if repeat != 1.0 {
        runs(seen.recent, &|x, _| if x <= 0.0 { x * repeat } else { x / repeat });
    }
    let (frequency, presence) = (params.frequency_penalty, params.presence_penalty);
    if frequency != 0.0 || presence != 0.0 {
        runs(seen.emitted, &|x, count| x - in_range(count * frequency) - presence);
    }
}
