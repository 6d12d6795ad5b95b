//! The rows of a forward pass, whatever the model.

use std::ops::Range;

use super::SlotIndex;

/// The rows of a pass, part after part.
#[derive(Debug, Default)]
pub(super) struct Pass {
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) spans: Vec<PassSpan>,
    /// Rows whose logits are wanted, rising.
    pub(super) wanted: Vec<usize>,
}

impl Pass {
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.spans.clear();
        self.wanted.clear();
    }
}

/// Where a part's rows lie in a pass.
#[derive(Debug, Clone)]
pub(super) struct PassSpan {
    pub(super) slot: SlotIndex,
    /// Position of the first row.
    pub(super) start: usize,
    pub(super) rows: Range<usize>,
    /// How many of its last rows have their logits wanted.
    pub(super) n_wanted: usize,
}
