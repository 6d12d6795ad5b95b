//! Depthwise causal convolution over time, then silu.

use super::exp::exp;
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::rows::for_row_ranges;
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// Sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvShape {
    /// Channels, each with its own filter.
    pub channels: usize,
    /// Steps that a filter sees.
    pub kernel: usize,
    /// Rows from one step to the next.
    pub dilation: usize,
}

impl ConvShape {
    /// Rows before the first that a filter sees.
    #[must_use]
    pub fn history_rows(self) -> usize {
        self.kernel.saturating_sub(1) * self.dilation
    }
}

/// `out_t = silu(Σ_m w_m x_{t - (kernel - 1 - m) dilation})` per channel. `history` holds the rows
/// before the first, oldest first, zeros before the start, and then those before the next.
///
/// *Shapes*: `x`, `out` `(n, channels)`; `weight` `(kernel, channels)`; `history`
/// `(history_rows, channels)`.
///
/// # Panics
/// When the shapes do not fit.
pub fn conv(
    pool: &Pool,
    isa: Isa,
    shape: ConvShape,
    x: &[f32],
    weight: &[f32],
    history: &mut [f32],
    out: &mut [f32],
) {
    let ConvShape { channels, kernel, .. } = shape;
    assert!(channels > 0 && kernel > 0, "{shape:?}");
    assert!(x.len().is_multiple_of(channels) && x.len() == out.len(), "rows of {channels}");
    assert_eq!(weight.len(), kernel * channels, "weights");
    assert_eq!(history.len(), shape.history_rows() * channels, "history");
    let n_rows = x.len() / channels;
    let out = SharedMut::new(out);
    let before = &*history;
    for_row_ranges(pool, n_rows, channels * kernel, &|rows| {
        for row in rows {
            // SAFETY: the ranges of rows are disjoint.
            let out = unsafe { out.part(row * channels, channels) };
            dispatch(isa, Conv { shape, x, weight, before, row, out });
        }
    });
    // The last rows of history and input together.
    if n_rows >= shape.history_rows() {
        history.copy_from_slice(&x[x.len() - history.len()..]);
    } else {
        history.copy_within(x.len().., 0);
        let kept = history.len() - x.len();
        history[kept..].copy_from_slice(x);
    }
}

struct Conv<'a> {
    shape: ConvShape,
    x: &'a [f32],
    weight: &'a [f32],
    before: &'a [f32],
    row: usize,
    out: &'a mut [f32],
}

impl Kernel for Conv<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let ConvShape { channels, kernel, dilation } = self.shape;
        let n_before = self.shape.history_rows();
        for start in (0..channels).step_by(LANES) {
            let end = (start + LANES).min(channels);
            let mut sum = lanes.splat(0.0);
            for step in 0..kernel {
                // Counted from the first row of the history.
                let at = self.row + step * dilation;
                let x = match at.checked_sub(n_before) {
                    None => &self.before[at * channels..][start..end],
                    Some(at) => &self.x[at * channels..][start..end],
                };
                let weight = &self.weight[step * channels..][start..end];
                sum = lanes.fma(lanes.load_part(weight, 0.0), lanes.load_part(x, 0.0), sum);
            }
            let e = exp(lanes, lanes.sub(lanes.splat(0.0), sum));
            let y = lanes.div(sum, lanes.add(lanes.splat(1.0), e));
            lanes.store_part(y, &mut self.out[start..end]);
        }
    }
}
