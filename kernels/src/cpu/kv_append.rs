//! Writes keys and values of new positions into the pages of a sequence.

use super::kv::{Elements, Heads, KvPage, PAGE_LEN, TILE, flat};
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use crate::isa::Isa;

/// Stores rows of keys and values, rounded as their pages' format says, at `start`, `start + 1`, …
///
/// In f16 a value too large (above 65,504) becomes infinite, and attention over it NaN.
///
/// # Shapes
///
/// `keys`, `values`: `(n_tokens, n_kv_heads, head_dim)`; `pages`: those of one layer of one
/// sequence, from position 0.
///
/// # Panics
///
/// When the pages do not reach that far or belong to other heads, or the rows are not whole.
pub fn kv_append(
    isa: Isa,
    heads: Heads,
    pages: &mut [KvPage],
    start: usize,
    keys: &[f32],
    values: &[f32],
) {
    let width = heads.kv_width();
    assert!(
        keys.len() == values.len() && keys.len().is_multiple_of(width),
        "kv_append: {} and {} elements in rows of {width}",
        keys.len(),
        values.len()
    );
    let rows = keys.chunks_exact(width).zip(values.chunks_exact(width));
    for (position, (key, value)) in (start..).zip(rows) {
        let page = &mut pages[position / PAGE_LEN];
        page.assert_fits(heads);
        let place = position % PAGE_LEN;
        match &mut page.elements {
            Elements::F16(page) => {
                dispatch(isa, Append { heads, page: flat(page), place, key, value });
            }
            Elements::F32(page) => copy(heads, flat(page), place, key, value),
        }
    }
}

/// Exact, so the same at every level.
fn copy(heads: Heads, page: &mut [f32], place: usize, key: &[f32], value: &[f32]) {
    let head_dim = heads.head_dim();
    let rows = key.chunks_exact(head_dim).zip(value.chunks_exact(head_dim));
    for (kv_head, (key, value)) in rows.enumerate() {
        let first = heads.key_tile(kv_head, place / TILE) + place % TILE;
        for (element, key) in key.iter().enumerate() {
            page[first + TILE * element] = *key;
        }
        page[heads.value(kv_head, place)..][..head_dim].copy_from_slice(value);
    }
}

struct Append<'a> {
    heads: Heads,
    page: &'a mut [u16],
    place: usize,
    key: &'a [f32],
    value: &'a [f32],
}

impl Kernel for Append<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let head_dim = self.heads.head_dim();
        for kv_head in 0..self.heads.n_kv_heads() {
            let row = kv_head * head_dim..(kv_head + 1) * head_dim;

            let first = self.heads.key_tile(kv_head, self.place / TILE) + self.place % TILE;
            let tile = &mut self.page[first..][..TILE * (head_dim - 1) + 1];
            let mut halves = [0; LANES];
            for (index, chunk) in self.key[row.clone()].as_chunks::<LANES>().0.iter().enumerate() {
                lanes.store_half(lanes.load(chunk), &mut halves);
                for (lane, half) in halves.into_iter().enumerate() {
                    tile[TILE * (index * LANES + lane)] = half;
                }
            }

            let value = &mut self.page[self.heads.value(kv_head, self.place)..][..head_dim];
            let chunks = self.value[row].as_chunks::<LANES>().0.iter();
            for (chunk, out) in chunks.zip(value.as_chunks_mut::<LANES>().0) {
                lanes.store_half(lanes.load(chunk), out);
            }
        }
    }
}
