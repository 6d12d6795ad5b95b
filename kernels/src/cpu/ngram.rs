//! Which rows of the n-gram table a token reads.
//!
//! The reference is fast enough: some multiplications a token. It is called as it is, so both are
//! equal.

pub use crate::reference::ngram::{NgramError, NgramShape};

use crate::reference;

/// The rows of every token in order, `n_heads` each, into reused memory.
///
/// *Shapes*: `history` `(order - 1)`, the tokens before the first of `tokens`, oldest first, with
/// the shape's EOS where there are none; `tokens` `(n_tokens)`; `out` `(n_tokens, n_heads)`. Every
/// row is below the shape's `n_table_rows`.
///
/// # Panics
/// When the history has another length.
pub fn ngram_rows(shape: &NgramShape, history: &[u32], tokens: &[u32], out: &mut Vec<u64>) {
    reference::ngram::ngram_rows(shape, history, tokens, out);
}
