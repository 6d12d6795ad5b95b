//! Rows of a token embedding, as floats.
//!
//! The reference is fast enough: one row a token. It is called as it is, so both are equal bit by
//! bit.

use super::lanes::prefetch;
use crate::reference;
use crate::tensor::WeightView;

/// Looks up the row of each token.
///
/// *Shapes*: `w` `(vocab_size, d_model)`; `out` `(tokens.len(), d_model)`.
///
/// # Panics
/// When a token is not below `vocab_size`, or `out` has another length.
pub fn embed(w: &WeightView<'_>, tokens: &[u32], out: &mut [f32]) {
    reference::embed::embed(w, tokens, out);
}

/// Rows asked of memory before the first of them is read.
const ROWS_AHEAD: usize = 16;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Looks up rows scattered over a table far larger than any cache.
///
/// *Shapes*: `w` `(n_table_rows, width)`; `out` `(rows.len(), width)`.
///
/// # Panics
/// When a row is not below `n_table_rows`, or `out` has another length.
pub fn embed_rows(w: &WeightView<'_>, rows: &[u64], out: &mut [f32]) {
    assert_eq!(Some(out.len()), rows.len().checked_mul(w.cols()), "length of the result");
    let bytes = |row: u64| w.row(usize::try_from(row).unwrap_or(usize::MAX));
    let ask = |row: &u64| bytes(*row).chunks(LINE).for_each(|line| prefetch(line.as_ptr()));
    rows.iter().take(ROWS_AHEAD).for_each(ask);
    for (index, &row) in rows.iter().enumerate() {
        rows.iter().skip(index + ROWS_AHEAD).take(1).for_each(ask);
        let out = &mut out[index * w.cols()..][..w.cols()];
        reference::dequantize::dequantize_row(w.format(), bytes(row), out);
    }
}
