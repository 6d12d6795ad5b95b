//! Hyper-connections: a residual of several streams, mixed into what a block reads, and a block's
//! output added onto each of them.
//!
//! With `C` streams and `N` the streams after their norm (`rms_norm_streams`):
//! `a = silu(W_down N / C)`, `gamma = W_up a`, what the block reads is
//! `(1 / C) sum_c sigmoid(gamma_c) N_c`, and its output `y` goes back as
//! `R_c += 2 sigmoid((W_inject N)_c / C) y`. The division comes before both functions.
//!
//! Source: Zhu et al., "Hyper-Connections", 2024; the forms here are those of `qwen4_exp`.

use super::exp::{sigmoid, silu};
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::rows::{for_row_ranges, for_vectors, load, store};
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// `wide` elements are `n_streams` for each of `narrow`.
fn assert_streams(op: &str, wide: usize, narrow: usize, n_streams: usize) {
    assert!(
        n_streams > 0 && Some(wide) == narrow.checked_mul(n_streams),
        "{op}: {wide} elements for {n_streams} streams of {narrow}"
    );
}

/// Copies each row of `x` into every stream.
///
/// # Shapes
///
/// `x`: `(n_tokens, d_model)`; `out`: `(n_tokens, n_streams, d_model)`.
///
/// # Panics
///
/// When the lengths do not fit those shapes.
pub fn hyper_expand(pool: &Pool, x: &[f32], d_model: usize, n_streams: usize, out: &mut [f32]) {
    assert_streams("hyper_expand", out.len(), x.len(), n_streams);
    if x.is_empty() {
        return;
    }
    assert!(d_model > 0 && x.len().is_multiple_of(d_model), "hyper_expand: {}", x.len());
    let out = SharedMut::new(out);
    for_row_ranges(pool, x.len() / d_model, n_streams * d_model, &|rows| {
        let wide = n_streams * d_model;
        // SAFETY: the ranges of rows are disjoint.
        let out = unsafe { out.part(rows.start * wide, rows.len() * wide) };
        let x = x[rows.start * d_model..rows.end * d_model].chunks_exact(d_model);
        for (x, out) in x.zip(out.chunks_exact_mut(wide)) {
            out.chunks_exact_mut(d_model).for_each(|stream| stream.copy_from_slice(x));
        }
    });
}

/// `x = silu(x / n_streams)`, per element.
///
/// # Panics
///
/// When there are no streams.
pub fn hyper_silu(pool: &Pool, isa: Isa, x: &mut [f32], n_streams: usize) {
    assert!(n_streams > 0, "hyper_silu: no streams");
    let n = x.len();
    let x = SharedMut::new(x);
    for_vectors(pool, n, &|range| {
        // SAFETY: the ranges are disjoint.
        let x = unsafe { x.part(range.start, range.len()) };
        dispatch(isa, Silu { x, divisor: count(n_streams) });
    });
}

/// A number of streams as a float.
#[expect(clippy::cast_precision_loss, reason = "there are a handful of streams")]
fn count(n_streams: usize) -> f32 {
    n_streams as f32
}

struct Silu<'a> {
    x: &'a mut [f32],
    divisor: f32,
}

impl Kernel for Silu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let divisor = lanes.splat(self.divisor);
        let (x, rest) = self.x.as_chunks_mut::<LANES>();
        for x in x {
            lanes.store(silu(lanes, lanes.div(lanes.load(x), divisor)), x);
        }
        if !rest.is_empty() {
            let x = lanes.load_part(rest, 0.0);
            lanes.store_part(silu(lanes, lanes.div(x, divisor)), rest);
        }
    }
}

/// What a block reads: `(1 / n_streams) sum_c sigmoid(gamma_c) normed_c`, streams in order.
///
/// # Shapes
///
/// `normed` and `gamma` (before the sigmoid): `(n_tokens, n_streams, d_model)`; `out`:
/// `(n_tokens, d_model)`.
///
/// # Panics
///
/// When the lengths do not fit those shapes.
pub fn hyper_mix(
    pool: &Pool,
    isa: Isa,
    normed: &[f32],
    gamma: &[f32],
    d_model: usize,
    n_streams: usize,
    out: &mut [f32],
) {
    assert_streams("hyper_mix", normed.len(), out.len(), n_streams);
    assert_eq!(normed.len(), gamma.len(), "hyper_mix: lengths differ");
    if out.is_empty() {
        return;
    }
    assert!(d_model > 0 && out.len().is_multiple_of(d_model), "hyper_mix: {}", out.len());
    let n_rows = out.len() / d_model;
    let out = SharedMut::new(out);
    for_row_ranges(pool, n_rows, n_streams * d_model, &|rows| {
        // SAFETY: the ranges of rows are disjoint.
        let out = unsafe { out.part(rows.start * d_model, rows.len() * d_model) };
        let wide = rows.start * n_streams * d_model..rows.end * n_streams * d_model;
        let (normed, gamma) = (&normed[wide.clone()], &gamma[wide]);
        dispatch(isa, Mix { normed, gamma, d_model, n_streams, out });
    });
}

struct Mix<'a> {
    normed: &'a [f32],
    gamma: &'a [f32],
    d_model: usize,
    n_streams: usize,
    out: &'a mut [f32],
}

impl Kernel for Mix<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { normed, gamma, d_model, n_streams, out } = self;
        let divisor = lanes.splat(count(n_streams));
        let wide = n_streams * d_model;
        for (row, out) in out.chunks_exact_mut(d_model).enumerate() {
            let (normed, gamma) = (&normed[row * wide..][..wide], &gamma[row * wide..][..wide]);
            for (index, out) in out.chunks_mut(LANES).enumerate() {
                let mut sum = lanes.splat(0.0);
                for stream in 0..n_streams {
                    let start = stream * d_model + index * LANES;
                    let n = load(lanes, &normed[start..start + out.len()]);
                    let g = load(lanes, &gamma[start..start + out.len()]);
                    sum = lanes.fma(sigmoid(lanes, g), n, sum);
                }
                store(lanes, lanes.div(sum, divisor), out);
            }
        }
    }
}

/// A block's output onto every stream: `residual_c += 2 sigmoid(inject_c / n_streams) y`.
///
/// # Shapes
///
/// `residual`: `(n_tokens, n_streams, d_model)`; `y`: `(n_tokens, d_model)`; `inject` (before the
/// division): `(n_tokens, n_streams)`.
///
/// # Panics
///
/// When the lengths do not fit those shapes.
pub fn hyper_add(
    pool: &Pool,
    isa: Isa,
    residual: &mut [f32],
    y: &[f32],
    inject: &[f32],
    n_streams: usize,
) {
    assert_streams("hyper_add", residual.len(), y.len(), n_streams);
    if y.is_empty() {
        return;
    }
    let n_rows = inject.len() / n_streams;
    assert!(
        inject.len().is_multiple_of(n_streams) && n_rows > 0 && y.len().is_multiple_of(n_rows),
        "hyper_add: {} weights for {} elements",
        inject.len(),
        y.len()
    );
    let d_model = y.len() / n_rows;
    let residual = SharedMut::new(residual);
    for_row_ranges(pool, n_rows, n_streams * d_model, &|rows| {
        let wide = n_streams * d_model;
        // SAFETY: the ranges of rows are disjoint.
        let residual = unsafe { residual.part(rows.start * wide, rows.len() * wide) };
        let y = &y[rows.start * d_model..rows.end * d_model];
        let inject = &inject[rows.start * n_streams..rows.end * n_streams];
        dispatch(isa, Add { residual, y, inject, d_model, n_streams });
    });
}

struct Add<'a> {
    residual: &'a mut [f32],
    y: &'a [f32],
    inject: &'a [f32],
    d_model: usize,
    n_streams: usize,
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { residual, y, inject, d_model, n_streams } = self;
        let divisor = lanes.splat(count(n_streams));
        for (index, stream) in residual.chunks_exact_mut(d_model).enumerate() {
            let y = &y[index / n_streams * d_model..][..d_model];
            let weight = sigmoid(lanes, lanes.div(lanes.splat(inject[index]), divisor));
            let weight = lanes.mul(lanes.splat(2.0), weight);
            for (r, y) in stream.chunks_mut(LANES).zip(y.chunks(LANES)) {
                store(lanes, lanes.fma(weight, load(lanes, y), load(lanes, r)), r);
            }
        }
    }
}
