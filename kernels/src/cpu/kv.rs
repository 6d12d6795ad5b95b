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

use half::f16;

use super::lanes::{Chunk, LANES};

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
    pub fn page_bytes(self, format: KvFormat) -> usize {
        2 * self.page_elements() * format.element_bytes()
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

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvFormat {
    /// Rounded to half precision.
    #[default]
    F16,
    /// As computed.
    F32,
}

impl KvFormat {
    /// Bytes of an element.
    #[must_use]
    pub fn element_bytes(self) -> usize {
        match self {
            Self::F16 => size_of::<u16>(),
            Self::F32 => size_of::<f32>(),
        }
    }
}

/// Sixteen f16 in memory, aligned so that none of a page's vectors straddles a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct Halves(pub(super) [u16; LANES]);

/// Keys and values of [`PAGE_LEN`] positions of one layer of one sequence.
#[derive(Debug, Clone)]
pub struct KvPage {
    pub(super) elements: Elements,
}

/// A page's elements, in the layout of this module's head.
#[derive(Debug, Clone)]
pub(super) enum Elements {
    F16(Box<[Halves]>),
    F32(Box<[Chunk]>),
}

impl KvPage {
    /// A page for `heads`, zeroed; says so when there is no memory for it.
    ///
    /// # Errors
    ///
    /// The allocator's.
    pub fn try_new(heads: Heads, format: KvFormat) -> Result<Self, TryReserveError> {
        let n = 2 * heads.page_elements() / LANES;
        let elements = match format {
            KvFormat::F16 => Elements::F16(zeroed(n, Halves([0; LANES]))?),
            KvFormat::F32 => Elements::F32(zeroed(n, Chunk::ZERO)?),
        };
        Ok(Self { elements })
    }

    /// How its elements are stored.
    #[must_use]
    pub fn format(&self) -> KvFormat {
        match self.elements {
            Elements::F16(_) => KvFormat::F16,
            Elements::F32(_) => KvFormat::F32,
        }
    }

    /// The f16 bits of a page in that format, in the layout of this module's head; of another,
    /// nothing.
    #[must_use]
    pub fn bits(&self) -> &[u16] {
        match &self.elements {
            Elements::F16(halves) => half_vectors(halves).as_flattened(),
            Elements::F32(_) => &[],
        }
    }

    /// As [`bits`](Self::bits), to be written.
    pub fn bits_mut(&mut self) -> &mut [u16] {
        match &mut self.elements {
            Elements::F16(halves) => flat(halves),
            Elements::F32(_) => &mut [],
        }
    }

    /// The element at an index, as f32.
    #[inline(always)]
    pub(super) fn element(&self, index: usize) -> f32 {
        match &self.elements {
            Elements::F16(halves) => {
                f16::from_bits(halves[index / LANES].0[index % LANES]).to_f32()
            }
            Elements::F32(chunks) => chunks[index / LANES].0[index % LANES],
        }
    }

    pub(super) fn assert_fits(&self, heads: Heads) {
        assert_eq!(
            LANES
                * match &self.elements {
                    Elements::F16(halves) => halves.len(),
                    Elements::F32(chunks) => chunks.len(),
                },
            2 * heads.page_elements(),
            "a KV page of other heads than {heads:?}"
        );
    }
}

fn zeroed<T: Clone>(n: usize, zero: T) -> Result<Box<[T]>, TryReserveError> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(n)?;
    elements.resize(n, zero);
    Ok(elements.into_boxed_slice())
}

/// The f16 bits of vectors, one after the other.
pub(super) fn half_vectors(halves: &[Halves]) -> &[[u16; LANES]] {
    // SAFETY: `Halves` is an array of sixteen `u16` without padding.
    unsafe { std::slice::from_raw_parts(halves.as_ptr().cast(), halves.len()) }
}

/// The elements of vectors, one after the other.
pub(super) fn flat<T, V>(vectors: &mut [V]) -> &mut [T] {
    let n = size_of_val(vectors) / size_of::<T>();
    // SAFETY: called with `Halves` and `Chunk`, arrays of plain numbers without padding.
    unsafe { std::slice::from_raw_parts_mut(vectors.as_mut_ptr().cast(), n) }
}
