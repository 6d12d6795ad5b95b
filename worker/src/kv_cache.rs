//! The KV cache: keys and values of every slot, in pages that grow with use.
//!
//! A page holds the keys and values of [`PAGE_LEN`] consecutive positions of one layer of one
//! slot; what lies inside is the backend's. Invariants: a slot of length n owns exactly
//! `ceil(n / PAGE_LEN)` pages in each layer once a pass has ended, and a page is never shared.
//! Pages are given back as soon as no position needs them, so memory follows the contexts in use
//! and not their limit.

use kernels::cpu::kv::{Heads, KvFormat};
use shared::ids::Position;

use crate::backend::Backend;
use crate::engine::{EngineError, SlotIndex};

pub use kernels::cpu::kv::PAGE_LEN;

/// The pages of all slots.
#[derive(Debug)]
pub(crate) struct KvCache<B: Backend> {
    heads: Heads,
    format: KvFormat,
    slots: Vec<Slot<B::Page>>,
}

#[derive(Debug)]
struct Slot<P> {
    length: usize,
    /// Pages of each layer, in order of positions.
    layers: Vec<Vec<P>>,
}

impl<B: Backend> KvCache<B> {
    /// An empty cache.
    pub(crate) fn new(n_slots: usize, n_layers: usize, heads: Heads, format: KvFormat) -> Self {
        let slot = || Slot { length: 0, layers: (0..n_layers).map(|_| Vec::new()).collect() };
        Self { heads, format, slots: (0..n_slots).map(|_| slot()).collect() }
    }

    /// Positions the slot holds.
    pub(crate) fn length(&self, slot: SlotIndex) -> usize {
        self.slots[slot.0 as usize].length
    }

    /// Makes room for positions up to `length`, exclusive. They count only after
    /// [`KvCache::set_length`].
    ///
    /// # Errors
    ///
    /// `OutOfMemory`; call [`KvCache::truncate`] to give back what was had.
    pub(crate) fn grow(
        &mut self,
        backend: &B,
        slot: SlotIndex,
        length: usize,
    ) -> Result<(), EngineError> {
        let n_pages = length.div_ceil(PAGE_LEN);
        for pages in &mut self.slots[slot.0 as usize].layers {
            while pages.len() < n_pages {
                pages.push(backend.page(self.heads, self.format)?);
            }
        }
        Ok(())
    }

    /// The positions below `length` have been computed.
    pub(crate) fn set_length(&mut self, slot: SlotIndex, length: usize) {
        let slot = &mut self.slots[slot.0 as usize];
        assert!(slot.layers.iter().all(|pages| pages.len() * PAGE_LEN >= length));
        slot.length = length;
    }

    /// Drops positions from `length` on, and every page that none of the others needs.
    pub(crate) fn truncate(&mut self, slot: SlotIndex, length: Position) {
        let slot = &mut self.slots[slot.0 as usize];
        slot.length = slot.length.min(length.index());
        let n_pages = slot.length.div_ceil(PAGE_LEN);
        for pages in &mut slot.layers {
            pages.truncate(n_pages);
            if n_pages == 0 {
                pages.shrink_to_fit();
            }
        }
    }

    /// The pages of a layer.
    pub(crate) fn pages(&self, slot: SlotIndex, layer: usize) -> &[B::Page] {
        &self.slots[slot.0 as usize].layers[layer]
    }

    /// The pages of a layer, to append to.
    pub(crate) fn pages_mut(&mut self, slot: SlotIndex, layer: usize) -> &mut [B::Page] {
        &mut self.slots[slot.0 as usize].layers[layer]
    }
}
