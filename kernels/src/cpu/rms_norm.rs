//! Root mean square normalisation: `y = x / sqrt(mean(x^2) + eps) * w`, per row, or per stream of a
//! wide row.

use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::rows::for_row_ranges;
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// Normalises each row of `x` and multiplies it by `weight`.
///
/// # Shapes
///
/// `x` and `out`: `(n_tokens, width)`; `weight`: `(width)`.
///
/// # Panics
///
/// When the lengths do not fit those shapes.
///
/// # Source
///
/// Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
pub fn rms_norm(pool: &Pool, isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    rms_norm_streams(pool, isa, x, weight, 1, eps, out);
}

/// The same over the streams of a wide row: each has its own mean and its own part of the weight.
///
/// # Shapes
///
/// `x` and `out`: `(n_tokens, n_streams * d_model)`; `weight`: `(n_streams * d_model)`.
///
/// # Panics
///
/// When the lengths do not fit those shapes.
pub fn rms_norm_streams(
    pool: &Pool,
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    n_streams: usize,
    eps: f32,
    out: &mut [f32],
) {
    let width = weight.len();
    assert_eq!(x.len(), out.len(), "rms_norm: input and output differ in length");
    if x.is_empty() {
        return;
    }
    assert!(
        width > 0 && x.len().is_multiple_of(width) && width.is_multiple_of(n_streams),
        "rms_norm: {} / {width} / {n_streams}",
        x.len()
    );
    let out = SharedMut::new(out);
    for_row_ranges(pool, x.len() / width, width, &|rows| {
        let (start, len) = (rows.start * width, rows.len() * width);
        // SAFETY: the ranges of rows are disjoint.
        let out = unsafe { out.part(start, len) };
        dispatch(isa, RmsNorm { x: &x[start..start + len], weight, n_streams, eps, out });
    });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    n_streams: usize,
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let stream_width = self.weight.len() / self.n_streams;
        let streams = self.x.chunks_exact(stream_width);
        for (index, (x, out)) in streams.zip(self.out.chunks_exact_mut(stream_width)).enumerate() {
            let start = index % self.n_streams * stream_width;
            let scale = inverse_rms(lanes, x, self.eps);
            multiply(lanes, x, scale, &self.weight[start..][..stream_width], out);
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`: lane sums over the row in order, then one tree.
#[inline(always)]
pub(super) fn inverse_rms<L: Lanes>(lanes: L, x: &[f32], eps: f32) -> f32 {
    let mut sum = lanes.splat(0.0);
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        let v = lanes.load(chunk);
        sum = lanes.fma(v, v, sum);
    }
    if !rest.is_empty() {
        let v = lanes.load_part(rest, 0.0);
        sum = lanes.fma(v, v, sum);
    }
    #[expect(clippy::cast_precision_loss, reason = "a width is far below 2^24")]
    let mean = lanes.sum(sum) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

#[inline(always)]
fn multiply<L: Lanes>(lanes: L, x: &[f32], scale: f32, weight: &[f32], out: &mut [f32]) {
    let scale_v = lanes.splat(scale);
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (weight, weight_rest) = weight.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for ((x, weight), out) in x.iter().zip(weight).zip(out) {
        lanes.store(lanes.mul(lanes.mul(lanes.load(x), scale_v), lanes.load(weight)), out);
    }
    for ((x, weight), out) in x_rest.iter().zip(weight_rest).zip(out_rest) {
        *out = x * scale * weight;
    }
}
