//! Rows of a token embedding, as floats.

use super::dequantize::dequantize_row;
use crate::tensor::WeightView;

/// Looks up the row of each token.
///
/// *Shapes*: `w` `(vocab_size, d_model)`; `out` `(tokens.len(), d_model)`.
///
/// # Panics
/// When a token is not below `vocab_size`, or `out` has another length.
pub fn embed(w: &WeightView<'_>, tokens: &[u32], out: &mut [f32]) {
    assert_eq!(Some(out.len()), tokens.len().checked_mul(w.cols()), "length of the result");
    for (index, &token) in tokens.iter().enumerate() {
        let row = usize::try_from(token).expect("a usize has at least 32 bits here");
        let out = &mut out[index * w.cols()..][..w.cols()];
        dequantize_row(w.format(), w.row(row), out);
    }
}

/// Looks up rows by numbers that may need 64 bits. See `cpu::embed_rows`.
///
/// # Panics
/// When a row is not below the table's, or `out` has another length.
pub fn embed_rows(w: &WeightView<'_>, rows: &[u64], out: &mut [f32]) {
    assert_eq!(Some(out.len()), rows.len().checked_mul(w.cols()), "length of the result");
    for (index, &row) in rows.iter().enumerate() {
        let row = usize::try_from(row).expect("a table in memory has no more rows than a usize");
        dequantize_row(w.format(), w.row(row), &mut out[index * w.cols()..][..w.cols()]);
    }
}
