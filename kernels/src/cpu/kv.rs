//! The memory of keys and values: pages of a fixed number of positions.
//!
//! A [`KvPage`] holds keys and values of [`PAGE_LEN`] positions of one layer of one sequence, for
//! all its KV heads, as f16. Keys lie transposed in tiles of sixteen positions, so that one vector
//! holds one element of sixteen keys; values lie row by row, so that one vector holds sixteen
//! elements of one value:
//!
//! ```text
//! keys    (n_kv_heads, PAGE_LEN / 16, head_dim, 16)
//! values  (n_kv_heads, PAGE_LEN, head_dim)
//! ```
//!
//! This file alone knows that. Pages are filled by `kv_append` and read by `attention`. What lies
//! beyond a sequence's last position is never read into a result.

use std::collections::TryReserveError;
use std::ops::Range;

use thiserror::Error;

use super::lanes::LANES;

/// Positions in a page.
pub const PAGE_LEN: usize = 64;

/// Keys in a tile: one per lane.
pub(super) const TILE: usize = LANES;

/// Tiles in a page.
pub(super) const TILES: usize = PAGE_LEN / TILE;

/// The widest head the kernels take.
pub const HEAD_DIM_MAX: usize = 1024;

/// Head shapes that the attention kernels do not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HeadsError {
    /// The width of a head must be whole vectors.
    #[error("attention heads of {0} elements; multiples of 16 up to {HEAD_DIM_MAX} are supported")]
    HeadDim(usize),
    /// Every KV head serves equally many heads.
    #[error("{n_heads} attention heads cannot share {n_kv_heads} KV heads evenly")]
    Groups {
        /// Query heads.
        n_heads: usize,
        /// KV heads.
        n_kv_heads: usize,
    },
}

/// Heads of an attention layer, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

impl Heads {
    /// Checks a model's numbers.
    ///
    /// # Errors
    ///
    /// [`HeadsError`] if the kernels cannot compute such a layer.
    pub fn new(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> Result<Self, HeadsError> {
        if head_dim == 0 || !head_dim.is_multiple_of(LANES) || head_dim > HEAD_DIM_MAX {
            return Err(HeadsError::HeadDim(head_dim));
        }
        if n_kv_heads == 0 || n_heads == 0 || !n_heads.is_multiple_of(n_kv_heads) {
            return Err(HeadsError::Groups { n_heads, n_kv_heads });
        }
        Ok(Self { n_heads, n_kv_heads, head_dim })
    }

    /// Query heads.
    #[must_use]
    pub fn n_heads(self) -> usize {
        self.n_heads
    }

    /// KV heads.
    #[must_use]
    pub fn n_kv_heads(self) -> usize {
        self.n_kv_heads
    }

    /// Elements of a head.
    #[must_use]
    pub fn head_dim(self) -> usize {
        self.head_dim
    }

    /// Query heads that share a KV head.
    #[must_use]
    pub fn group(self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Width of a row of queries.
    #[must_use]
    pub fn q_width(self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of a row of keys, and of one of values.
    #[must_use]
    pub fn kv_width(self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Bytes of a page for these heads.
    #[must_use]
    pub fn page_bytes(self) -> usize {
        2 * self.page_elements() * size_of::<u16>()
    }

    /// Keys in a page, and as many values, in elements.
    fn page_elements(self) -> usize {
        PAGE_LEN * self.kv_width()
    }

    /// Index of element 0 of a tile's keys: element `d` of key `i` is at `16 * d + i` from it.
    pub(super) fn key_tile(self, kv_head: usize, tile: usize) -> usize {
        (kv_head * TILES + tile) * self.head_dim * TILE
    }

    /// The keys of one KV head.
    pub(super) fn keys(self, kv_head: usize) -> Range<usize> {
        self.key_tile(kv_head, 0)..self.key_tile(kv_head + 1, 0)
    }

    /// Index of the value of one place in the page.
    pub(super) fn value(self, kv_head: usize, place: usize) -> usize {
        self.page_elements() + (kv_head * PAGE_LEN + place) * self.head_dim
    }

    /// The values of one KV head.
    pub(super) fn values(self, kv_head: usize) -> Range<usize> {
        self.value(kv_head, 0)..self.value(kv_head + 1, 0)
    }
}

/// Sixteen f16 in memory, aligned so that none of a page's vectors straddles a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
struct Halves([u16; LANES]);

/// Keys and values of [`PAGE_LEN`] positions of one layer of one sequence.
#[derive(Debug, Clone)]
pub struct KvPage {
    halves: Box<[Halves]>,
}

impl KvPage {
    /// A page for `heads`, zeroed.
    #[must_use]
    pub fn new(heads: Heads) -> Self {
        let n = 2 * heads.page_elements() / LANES;
        Self { halves: vec![Halves([0; LANES]); n].into_boxed_slice() }
    }

    /// As [`new`](Self::new), but says so when there is no memory for it.
    ///
    /// # Errors
    ///
    /// The allocator's.
    pub fn try_new(heads: Heads) -> Result<Self, TryReserveError> {
        let n = 2 * heads.page_elements() / LANES;
        let mut halves = Vec::new();
        halves.try_reserve_exact(n)?;
        halves.resize(n, Halves([0; LANES]));
        Ok(Self { halves: halves.into_boxed_slice() })
    }

    /// Its f16 bits, in the layout of this module's head.
    #[must_use]
    pub fn bits(&self) -> &[u16] {
        // SAFETY: `Halves` is an array of `u16` without padding, the slice covers all of them.
        unsafe {
            std::slice::from_raw_parts(self.halves.as_ptr().cast(), self.halves.len() * LANES)
        }
    }

    /// As [`bits`](Self::bits), to be written.
    pub fn bits_mut(&mut self) -> &mut [u16] {
        let n = self.halves.len() * LANES;
        // SAFETY: as in `bits`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.halves.as_mut_ptr().cast(), n) }
    }

    pub(super) fn assert_fits(&self, heads: Heads) {
        assert_eq!(
            self.halves.len() * LANES,
            2 * heads.page_elements(),
            "a KV page of other heads than {heads:?}"
        );
    }
}
