//! Sums of activations: a block's output onto the residual stream, a bias onto every row.

use super::pool::Pool;
use super::rows::for_row_ranges;
use super::shared_mut::SharedMut;

/// `x += y`, per element.
///
/// # Shapes
///
/// Both of equal length, any shape.
///
/// # Panics
///
/// When the lengths differ.
pub fn residual_add(pool: &Pool, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "residual_add: lengths differ");
    let x = SharedMut::new(x);
    for_row_ranges(pool, y.len(), 1, &|elements| {
        // SAFETY: the ranges are disjoint.
        let x = unsafe { x.part(elements.start, elements.len()) };
        for (x, y) in x.iter_mut().zip(&y[elements]) {
            *x += y;
        }
    });
}

/// Adds `bias` to every row of `x`.
///
/// # Shapes
///
/// `x`: `(n_tokens, width)`; `bias`: `(width)`.
///
/// # Panics
///
/// When `x` is not whole rows.
pub fn add_bias(pool: &Pool, x: &mut [f32], bias: &[f32]) {
    if x.is_empty() {
        return;
    }
    let width = bias.len();
    assert!(width > 0 && x.len().is_multiple_of(width), "add_bias: {} / {width}", x.len());
    let n_rows = x.len() / width;
    let x = SharedMut::new(x);
    for_row_ranges(pool, n_rows, width, &|rows| {
        // SAFETY: the ranges of rows are disjoint.
        let x = unsafe { x.part(rows.start * width, rows.len() * width) };
        for row in x.chunks_exact_mut(width) {
            for (x, bias) in row.iter_mut().zip(bias) {
                *x += bias;
            }
        }
    });
}
