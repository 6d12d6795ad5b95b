//! One query row over chosen blocks of keys: they are gathered, page by page, into f32 pages of the
//! thread's scratch, which all query heads of the KV head then read like any other page.

use super::Task;
use super::state::Rows;
use super::tile::attend_page;
use crate::cpu::kv::{Heads, PAGE_LEN, TILE, TILES};
use crate::cpu::lanes::{Chunk, LANES, Lanes};

/// The blocks that a row sees, besides the tail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selected<'a> {
    /// Tokens in a block.
    pub(crate) block_len: usize,
    /// Rising.
    pub(crate) blocks: &'a [u32],
    /// First position of the tail, which reaches up to the row's own position.
    pub(crate) tail: usize,
}

/// Takes the chosen positions into the rows, in order of positions.
#[inline(always)]
pub(super) fn attend<L: Lanes>(
    lanes: L,
    heads: Heads,
    task: &Task<'_>,
    selected: Selected<'_>,
    rows: &mut Rows,
    gathered: &mut Vec<Chunk>,
) {
    let (group, head_dim) = (heads.group(), heads.head_dim());
    let Selected { block_len, blocks, tail } = selected;
    let n_chosen = blocks.len() * block_len;
    let n = n_chosen + (task.start + 1 - tail);
    let position = |index: usize| match index < n_chosen {
        true => blocks[index / block_len] as usize * block_len + index % block_len,
        false => tail + index - n_chosen,
    };
    gathered.resize(2 * TILES * head_dim, Chunk::ZERO);
    for first in (0..n).step_by(PAGE_LEN) {
        let count = (n - first).min(PAGE_LEN);
        let (keys, values) = gathered.split_at_mut(TILES * head_dim);
        for place in 0..count {
            let at = position(first + place);
            let page = &task.pages[at / PAGE_LEN];
            page.assert_fits(heads);
            let from = at % PAGE_LEN;
            let key = heads.key_tile(task.kv_head, from / TILE) + from % TILE;
            let value = heads.value(task.kv_head, from);
            for element in 0..head_dim {
                let chunk = &mut keys[place / TILE * head_dim + element];
                chunk.0[place % TILE] = page.element(key + TILE * element);
            }
            let values = &mut values[place * head_dim / LANES..][..head_dim / LANES];
            for (index, chunk) in values.iter_mut().enumerate() {
                for (lane, out) in chunk.0.iter_mut().enumerate() {
                    *out = page.element(value + index * LANES + lane);
                }
            }
        }
        attend_page(lanes, &*keys, &*values, rows, 0..group, |_| count);
    }
}
