//! The sizes of a gated delta rule, and its operands.

use thiserror::Error;

use crate::cpu::lanes::LANES;

/// Sizes for which there is no kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DeltaShapeError {
    /// Every key head must serve equally many value heads.
    #[error("{n_value_heads} value heads cannot share {n_key_heads} key heads equally")]
    Heads {
        /// Heads of queries and keys.
        n_key_heads: usize,
        /// Heads of values.
        n_value_heads: usize,
    },
    /// Heads are whole vectors.
    #[error("delta head width {0} is not a positive multiple of 16")]
    Width(usize),
    /// A size does not fit a `usize`.
    #[error("the delta heads are more than this machine can address")]
    TooLarge,
}

/// Which key head a value head uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyHeads {
    /// Value head `h` uses key head `h % n_key_heads`.
    Tiled,
    /// Value head `h` uses key head `h / (n_value_heads / n_key_heads)`.
    Grouped,
}

/// The sizes of a gated delta rule, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    n_key_heads: usize,
    n_value_heads: usize,
    head_dim: usize,
    key_heads: KeyHeads,
}

impl DeltaShape {
    /// `n_key_heads` heads of queries and as many of keys, `n_value_heads` of values, all
    /// `head_dim` wide.
    ///
    /// # Errors
    ///
    /// [`DeltaShapeError`] if there is no kernel for these; they come from a weight file.
    pub fn new(
        n_key_heads: usize,
        n_value_heads: usize,
        head_dim: usize,
        key_heads: KeyHeads,
    ) -> Result<Self, DeltaShapeError> {
        let is_shared = n_key_heads > 0 && n_value_heads.is_multiple_of(n_key_heads);
        if !is_shared || n_value_heads == 0 {
            return Err(DeltaShapeError::Heads { n_key_heads, n_value_heads });
        }
        if head_dim == 0 || !head_dim.is_multiple_of(LANES) {
            return Err(DeltaShapeError::Width(head_dim));
        }
        // The largest of the sizes below, in bytes.
        let state_len = head_dim.checked_mul(head_dim).and_then(|n| n.checked_mul(n_value_heads));
        let qkv_width = n_value_heads.checked_mul(3).and_then(|n| n.checked_mul(head_dim));
        let fits = |n: Option<usize>| n.is_some_and(|n| n <= isize::MAX.unsigned_abs() / 4);
        if !fits(state_len) || !fits(qkv_width) {
            return Err(DeltaShapeError::TooLarge);
        }
        Ok(Self { n_key_heads, n_value_heads, head_dim, key_heads })
    }

    /// Heads of queries, and of keys.
    #[must_use]
    pub fn n_key_heads(&self) -> usize {
        self.n_key_heads
    }

    /// Heads of values, each with a state of its own.
    #[must_use]
    pub fn n_value_heads(&self) -> usize {
        self.n_value_heads
    }

    /// Elements of every head.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// The key head that a value head uses.
    #[must_use]
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.key_heads {
            KeyHeads::Tiled => value_head % self.n_key_heads,
            KeyHeads::Grouped => value_head / (self.n_value_heads / self.n_key_heads),
        }
    }

    /// Elements of a row of queries, keys and values.
    #[must_use]
    pub fn qkv_width(&self) -> usize {
        (2 * self.n_key_heads + self.n_value_heads) * self.head_dim
    }

    /// Elements of a row of values, and of the result.
    #[must_use]
    pub fn value_width(&self) -> usize {
        self.n_value_heads * self.head_dim
    }

    /// Elements of the state: a matrix, key by value, for each value head.
    #[must_use]
    pub fn state_len(&self) -> usize {
        self.n_value_heads * self.head_dim * self.head_dim
    }
}

/// What the rule reads.
#[derive(Debug, Clone, Copy)]
pub struct DeltaInputs<'a> {
    /// `(n_tokens, qkv_width)`: queries, keys and values after the convolution.
    pub qkv: &'a [f32],
    /// `(n_tokens, n_value_heads)`: how much is forgotten, before the softplus.
    pub alpha: &'a [f32],
    /// `(n_tokens, n_value_heads)`: how much is learnt, before the sigmoid.
    pub beta: &'a [f32],
    /// `(n_value_heads)`: what the softplus is multiplied by; negative.
    pub a: &'a [f32],
    /// `(n_value_heads)`: added to `alpha`.
    pub dt: &'a [f32],
}

impl DeltaInputs<'_> {
    /// The number of rows.
    ///
    /// # Panics
    ///
    /// When the lengths do not fit the shape.
    pub(super) fn n_rows(&self, shape: &DeltaShape) -> usize {
        let n_rows = self.qkv.len() / shape.qkv_width();
        let n_heads = shape.n_value_heads();
        assert!(
            self.qkv.len() == n_rows * shape.qkv_width()
                && self.alpha.len() == n_rows * n_heads
                && self.beta.len() == n_rows * n_heads
                && self.a.len() == n_heads
                && self.dt.len() == n_heads,
            "delta_rule: qkv {}, alpha {}, beta {}, a {}, dt {} for {shape:?}",
            self.qkv.len(),
            self.alpha.len(),
            self.beta.len(),
            self.a.len(),
            self.dt.len()
        );
        n_rows
    }
}

/// In which order the rule is computed. The results differ by roundings only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaForm {
    /// Position after position: equal bits wherever a text is cut.
    Recurrent,
    /// Whole cells of 64 positions (0 to 63, 64 to 127, …) at once, and what is left of others
    /// position after position: equal bits where a text is cut at multiples of 64.
    Grid {
        /// Position of the first row.
        start: usize,
    },
}
