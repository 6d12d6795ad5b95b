//! Rows of a token embedding, as floats.
//!
//! The reference is fast enough: one row a token. It is called as it is, so both are equal bit by
//! bit.

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
