//! The gate on an n-gram embedding: how much of it each stream takes, by the likeness of a key made
//! of the embedding and a query made of the stream.
//!
//! `s_c = key_c · query_c / sqrt(d_model)`, `a_c = sigmoid(sign(s_c) sqrt(max(|s_c|, 1e-6)))` with
//! `sign(0) = 0`, `out_c = a_c value`. Source: the n-gram embedding of `qwen4_exp`.

use super::exp::sigmoid;
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::rows::{for_row_ranges, load, store};
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// Likenesses count as no smaller than this, unless they are 0.
const LIKENESS_MIN: f32 = 1.0e-6;

/// Gates each row of `value` for every stream.
///
/// # Shapes
///
/// `key` and `query`, both after their norms, and `out`: `(n_tokens, n_streams, d_model)`; `value`:
/// `(n_tokens, d_model)`.
///
/// # Panics
///
/// When the lengths do not fit those shapes.
pub fn ple_gate(
    pool: &Pool,
    isa: Isa,
    key: &[f32],
    query: &[f32],
    value: &[f32],
    d_model: usize,
    n_streams: usize,
    out: &mut [f32],
) {
    assert!(
        key.len() == out.len()
            && query.len() == out.len()
            && Some(out.len()) == value.len().checked_mul(n_streams),
        "ple_gate: keys {}, queries {}, values {}, out {}",
        key.len(),
        query.len(),
        value.len(),
        out.len()
    );
    if out.is_empty() {
        return;
    }
    assert!(d_model > 0 && value.len().is_multiple_of(d_model), "ple_gate: {}", value.len());
    let out = SharedMut::new(out);
    let wide = n_streams * d_model;
    for_row_ranges(pool, value.len() / d_model, wide, &|rows| {
        let (start, len) = (rows.start * wide, rows.len() * wide);
        // SAFETY: the ranges of rows are disjoint.
        let out = unsafe { out.part(start, len) };
        let (key, query) = (&key[start..start + len], &query[start..start + len]);
        let value = &value[rows.start * d_model..rows.end * d_model];
        dispatch(isa, PleGate { key, query, value, d_model, n_streams, out });
    });
}

struct PleGate<'a> {
    key: &'a [f32],
    query: &'a [f32],
    value: &'a [f32],
    d_model: usize,
    n_streams: usize,
    out: &'a mut [f32],
}

impl Kernel for PleGate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { key, query, value, d_model, n_streams, out } = self;
        #[expect(clippy::cast_precision_loss, reason = "a width is far below 2^24")]
        let divisor = (d_model as f32).sqrt();
        for (index, out) in out.chunks_exact_mut(d_model).enumerate() {
            let start = index * d_model;
            let product = dot(lanes, &key[start..][..d_model], &query[start..][..d_model]);
            let gate = sigmoid(lanes, lanes.splat(signed_root(product / divisor)));
            let value = &value[index / n_streams * d_model..][..d_model];
            for (out, value) in out.chunks_mut(LANES).zip(value.chunks(LANES)) {
                store(lanes, lanes.mul(gate, load(lanes, value)), out);
            }
        }
    }
}

#[inline(always)]
fn dot<L: Lanes>(lanes: L, a: &[f32], b: &[f32]) -> f32 {
    let mut sum = lanes.splat(0.0);
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        sum = lanes.fma(load(lanes, a), load(lanes, b), sum);
    }
    lanes.sum(sum)
}

/// The root of the magnitude, with the sign; 0 at 0, NaN at NaN.
#[inline(always)]
fn signed_root(likeness: f32) -> f32 {
    let magnitude = likeness.abs();
    // Not `max`, which would hide a NaN.
    let root = if magnitude < LIKENESS_MIN { LIKENESS_MIN.sqrt() } else { magnitude.sqrt() };
    if likeness == 0.0 { 0.0 } else { root.copysign(likeness) }
}
