//! Causal convolution over time, each channel by itself, then silu:
//! `y_t[ch] = silu(sum_m w[ch, m] x_(t - (kernel - 1 - m) * dilation)[ch])`.
//!
//! What lies before the first row comes from a history, which is moved on: cut anywhere, a text
//! gives the same bits. A fresh history is zeros.

use std::ops::Range;

use super::exp::silu;
use super::lanes::{Chunk, Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::rows::{for_row_ranges, load, store};
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvShape {
    /// Elements of a row.
    pub channels: usize,
    /// Rows that a result is made of.
    pub kernel: usize,
    /// Rows from one of these to the next.
    pub dilation: usize,
}

impl ConvShape {
    /// Rows before the first that its result needs.
    #[must_use]
    pub fn history_rows(&self) -> usize {
        self.kernel.saturating_sub(1) * self.dilation
    }
}

/// Vectors of channels that stay in the first-level cache with all rows they need.
const TILE_CHUNKS: usize = 16;
const TILE: usize = TILE_CHUNKS * LANES;

/// Convolves the rows of `x`, and moves `history` on to the last rows before the next.
///
/// # Shapes
///
/// `x` and `out`: `(n_tokens, channels)`; `weight`: `(channels, kernel)`; `history`:
/// `(history_rows, channels)`, oldest first.
///
/// # Panics
///
/// When the lengths do not fit those shapes, or kernel or dilation is zero.
pub fn causal_conv(
    pool: &Pool,
    isa: Isa,
    shape: ConvShape,
    x: &[f32],
    weight: &[f32],
    history: &mut [f32],
    out: &mut [f32],
) {
    let ConvShape { channels, kernel, dilation } = shape;
    assert!(
        kernel > 0
            && dilation > 0
            && x.len() == out.len()
            && Some(weight.len()) == channels.checked_mul(kernel)
            && Some(history.len()) == channels.checked_mul(shape.history_rows()),
        "causal_conv: {} to {} elements, {} weights, {} of history for {shape:?}",
        x.len(),
        out.len(),
        weight.len(),
        history.len()
    );
    if x.is_empty() {
        return;
    }
    assert!(x.len().is_multiple_of(channels), "causal_conv: {} / {channels}", x.len());
    let n_rows = x.len() / channels;
    let (history, out) = (SharedMut::new(history), SharedMut::new(out));
    for_row_ranges(pool, channels.div_ceil(TILE), TILE * n_rows, &|tiles| {
        let mut weights = vec![Chunk::ZERO; kernel * TILE_CHUNKS];
        for tile in tiles {
            let channels = tile * TILE..((tile + 1) * TILE).min(channels);
            let of_tile = &weight[channels.start * kernel..channels.end * kernel];
            for (channel, of_channel) in of_tile.chunks_exact(kernel).enumerate() {
                for (m, &w) in of_channel.iter().enumerate() {
                    weights[m * TILE_CHUNKS + channel / LANES].0[channel % LANES] = w;
                }
            }
            let weights = &weights[..];
            dispatch(isa, Tile { shape, n_rows, channels, x, weights, history, out });
        }
    });
}

/// Some channels of all rows.
struct Tile<'a> {
    shape: ConvShape,
    n_rows: usize,
    channels: Range<usize>,
    x: &'a [f32],
    /// `(kernel, TILE)`.
    weights: &'a [Chunk],
    history: SharedMut<'a, f32>,
    out: SharedMut<'a, f32>,
}

impl Tile<'_> {
    /// These channels of a row of the history and `x`, one after the other.
    #[inline(always)]
    fn row(&self, row: usize) -> &[f32] {
        let n_history = self.shape.history_rows();
        if row < n_history {
            // SAFETY: no other task has these channels, and while this is read nothing is written.
            unsafe { self.history.part(self.start(row), self.channels.len()) }
        } else {
            &self.x[self.start(row - n_history)..][..self.channels.len()]
        }
    }

    #[inline(always)]
    fn start(&self, row: usize) -> usize {
        row * self.shape.channels + self.channels.start
    }

    /// Keeps the last rows.
    #[inline(always)]
    fn move_history(&self) {
        for row in 0..self.shape.history_rows() {
            // SAFETY: no other task has these channels, and what is read is a later row.
            let to = unsafe { self.history.part(self.start(row), self.channels.len()) };
            to.copy_from_slice(self.row(row + self.n_rows));
        }
    }
}

impl Kernel for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let dilation = self.shape.dilation;
        for row in 0..self.n_rows {
            // SAFETY: no other task has these channels.
            let out = unsafe { self.out.part(self.start(row), self.channels.len()) };
            for (index, out) in out.chunks_mut(LANES).enumerate() {
                let place = index * LANES..index * LANES + out.len();
                let mut sum = lanes.splat(0.0);
                for (m, weights) in self.weights.chunks_exact(TILE_CHUNKS).enumerate() {
                    let x = load(lanes, &self.row(row + m * dilation)[place.clone()]);
                    sum = lanes.fma(lanes.load(&weights[index].0), x, sum);
                }
                store(lanes, silu(lanes, sum), out);
            }
        }
        self.move_history();
    }
}
