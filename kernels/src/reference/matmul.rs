//! `y = x · Wᵀ`: every weight as a float, sums in double precision.

use super::dequantize::dequantize_row;
use crate::tensor::WeightView;

/// Multiplies every row of `x` with every row of `w`.
///
/// *Shapes*: `w` `(n_out, n_in)`; `x` `(n_tokens, n_in)`; `y` `(n_tokens, n_out)`.
///
/// # Panics
/// When the shapes do not fit.
pub fn matmul(w: &WeightView<'_>, x: &[f32], y: &mut [f32]) {
    let (n_out, n_in) = (w.rows(), w.cols());
    let n_tokens = y.len().checked_div(n_out).unwrap_or(0);
    assert_eq!(y.len(), n_tokens * n_out, "length of the result");
    assert!(n_out == 0 || x.len() == n_tokens * n_in, "length of the activations");
    let mut row = vec![0.0; n_in];
    for out in 0..n_out {
        dequantize_row(w.format(), w.row(out), &mut row);
        for token in 0..n_tokens {
            let x = &x[token * n_in..][..n_in];
            let dot: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            #[expect(
                clippy::cast_possible_truncation,
                reason = "rounded to the result's precision"
            )]
            let dot = dot as f32;
            y[token * n_out + out] = dot;
        }
    }
}
