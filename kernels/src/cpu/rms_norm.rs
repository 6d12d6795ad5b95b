//! Root mean square normalisation: `y = x / sqrt(mean(x^2) + eps) * w`, per row.

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
    let width = weight.len();
    assert_eq!(x.len(), out.len(), "rms_norm: input and output differ in length");
    if x.is_empty() {
        return;
    }
    assert!(width > 0 && x.len().is_multiple_of(width), "rms_norm: {} / {width}", x.len());
    let out = SharedMut::new(out);
    for_row_ranges(pool, x.len() / width, width, &|rows| {
        let (start, len) = (rows.start * width, rows.len() * width);
        // SAFETY: the ranges of rows are disjoint.
        let out = unsafe { out.part(start, len) };
        dispatch(isa, RmsNorm { x: &x[start..start + len], weight, eps, out });
    });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            let scale = inverse_rms(lanes, x, self.eps);
            multiply(lanes, x, scale, self.weight, out);
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`: lane sums over the row in order, then one tree.
#[inline(always)]
fn inverse_rms<L: Lanes>(lanes: L, x: &[f32], eps: f32) -> f32 {
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
