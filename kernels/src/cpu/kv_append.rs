//! Writes keys and values of new positions into the pages of a sequence.

use super::kv::{Heads, KvPage, PAGE_LEN, TILE};
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use crate::isa::Isa;

/// Rounds rows of keys and values to f16 and stores them at `start`, `start + 1`, …
///
/// A value too large for f16 (above 65,504) becomes infinite, and attention over it NaN.
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
        let page = page.bits_mut();
        dispatch(isa, Append { heads, page, place: position % PAGE_LEN, key, value });
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
