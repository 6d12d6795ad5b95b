//! The sizes of an indexer.

use thiserror::Error;

use crate::cpu::lanes::LANES;

/// An indexer that cannot be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "an indexer of {n_heads} heads of {head_dim}, blocks of {block_len} and a budget of {budget}: \
     heads must be multiples of 16, and the budget whole blocks"
)]
pub struct IndexerError {
    pub(super) n_heads: usize,
    pub(super) head_dim: usize,
    pub(super) block_len: usize,
    pub(super) budget: usize,
}

/// Sizes of an indexer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerShape {
    pub(super) n_heads: usize,
    pub(super) head_dim: usize,
    pub(super) block_len: usize,
    pub(super) budget: usize,
}

impl IndexerShape {
    /// `n_heads` query heads and one key of `head_dim`; blocks of `block_len` tokens, of which
    /// `budget` tokens are chosen.
    ///
    /// # Errors
    ///
    /// [`IndexerError`] if the kernels cannot compute it; the numbers come from a weight file.
    pub fn new(
        n_heads: usize,
        head_dim: usize,
        block_len: usize,
        budget: usize,
    ) -> Result<Self, IndexerError> {
        let is_good = n_heads > 0
            && head_dim > 0
            && head_dim.is_multiple_of(LANES)
            && block_len > 0
            && budget > 0
            && budget.is_multiple_of(block_len);
        match is_good {
            true => Ok(Self { n_heads, head_dim, block_len, budget }),
            false => Err(IndexerError { n_heads, head_dim, block_len, budget }),
        }
    }

    /// Width of a row of queries.
    #[must_use]
    pub fn q_width(self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of a head, and of a key.
    #[must_use]
    pub fn head_dim(self) -> usize {
        self.head_dim
    }
}
