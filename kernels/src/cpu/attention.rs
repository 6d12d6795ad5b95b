//! Causal attention of query rows over the KV pages of their sequences.
//!
//! Each query head attends to the keys at positions `0..=position` of its own row:
//! `out = sum_j softmax_j(scale * q . k_j) * v_j`, with grouped KV heads.
//!
//! *Order-stable.* Keys are taken page by page on the absolute grid of positions, each page in the
//! same four steps (see `tile`), whatever else is computed beside. A row's bits depend on its
//! query, its position and the keys and values up to it: prefill and decode agree exactly.
//!
//! *Non-finite values.* -Inf is used as the mask of keys beyond a row's position, and only there: a
//! score that is itself infinite becomes NaN. Any NaN or infinity among a row's query, keys or
//! values makes that row NaN (an infinite value may also show as infinite), and no other row.
//!
//! # Source
//!
//! Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
//! "FlashAttention", 2022.

use std::cell::RefCell;

use super::indexer::Selection;
use super::kv::{Elements, Heads, KvPage, PAGE_LEN, half_vectors};
use super::lanes::{Chunk, Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::shared_mut::SharedMut;
use crate::isa::Isa;
pub(super) use sparse::Selected;
use state::Rows;
use tile::attend_page;

mod accumulate;
mod sparse;
mod state;
mod tile;

/// Query rows that a task takes together, so that they share each page's conversion to f32.
const TASK_ROWS: usize = 48;

/// Consecutive rows of one sequence in a pass.
#[derive(Debug, Clone, Copy)]
pub struct AttentionPart<'a> {
    /// The sequence's pages of this layer, from position 0 on, filled up to the part's last row.
    pub pages: &'a [KvPage],
    /// Position of the first row.
    pub start: usize,
    /// Rows.
    pub n_rows: usize,
    /// Which positions each row sees; `None` is all up to its own.
    pub selection: Option<&'a Selection>,
}

/// Attention of the rows of all parts.
///
/// # Shapes
///
/// `q` and `out`: `(n_tokens, n_heads, head_dim)`, the rows of the parts in their order.
///
/// # Panics
///
/// When the rows are not as many as the parts say, or a part's pages do not reach its last row.
pub fn attention(
    pool: &Pool,
    isa: Isa,
    heads: Heads,
    scale: f32,
    q: &[f32],
    parts: &[AttentionPart<'_>],
    out: &mut [f32],
) {
    let n_rows: usize = parts.iter().map(|part| part.n_rows).sum();
    let width = heads.q_width();
    assert!(
        q.len() == n_rows * width && out.len() == q.len(),
        "attention: {} and {} elements in {n_rows} rows of {width}",
        q.len(),
        out.len()
    );
    let tasks = tasks(heads, parts);
    let out = SharedMut::new(out);
    pool.run(tasks.len(), &|index| {
        // Outside of `dispatch`: what runs inside a foreign closure is not compiled for its level.
        SCRATCH.with_borrow_mut(|Scratch { rows, page }| {
            let task = tasks[index];
            dispatch(isa, Attend { heads, scale, q, task, out, rows, converted: page });
        });
    });
}

/// Rows of one sequence against one KV head.
#[derive(Debug, Clone, Copy)]
struct Task<'a> {
    pages: &'a [KvPage],
    kv_head: usize,
    /// Position of the first row.
    start: usize,
    n_rows: usize,
    /// Index of the first row in the pass.
    first_row: usize,
    /// The blocks that the only row sees, besides the tail.
    selected: Option<Selected<'a>>,
}

/// Shares the rows out, later positions first: they take longest.
fn tasks<'a>(heads: Heads, parts: &[AttentionPart<'a>]) -> Vec<Task<'a>> {
    let rows_per_task = (TASK_ROWS / heads.group()).max(1);
    let mut tasks = Vec::new();
    let mut part_row = 0;
    for part in parts {
        let n_pages = (part.start + part.n_rows).div_ceil(PAGE_LEN);
        assert!(
            part.n_rows == 0 || n_pages <= part.pages.len(),
            "attention: {} pages for positions up to {}",
            part.pages.len(),
            part.start + part.n_rows
        );
        let mut end = part.n_rows;
        while end > 0 {
            // A row that sees chosen blocks only is a task of its own.
            let selected = part.selection.and_then(|selection| selection.row(end - 1));
            let is_dense =
                |row: usize| part.selection.is_none_or(|selection| selection.row(row).is_none());
            let mut row = end - 1;
            while selected.is_none() && row % rows_per_task != 0 && is_dense(row - 1) {
                row -= 1;
            }
            for kv_head in 0..heads.n_kv_heads() {
                tasks.push(Task {
                    pages: part.pages,
                    kv_head,
                    start: part.start + row,
                    n_rows: end - row,
                    first_row: part_row + row,
                    selected,
                });
            }
            end = row;
        }
        part_row += part.n_rows;
    }
    tasks
}

/// Memory of one thread, reused: a page in f32 may be too large to allocate cheaply each time.
struct Scratch {
    rows: Rows,
    page: Vec<Chunk>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { rows: Rows::new(), page: Vec::new() }) };
}

struct Attend<'a> {
    heads: Heads,
    scale: f32,
    q: &'a [f32],
    task: Task<'a>,
    out: SharedMut<'a, f32>,
    rows: &'a mut Rows,
    /// A page's keys and values as f32.
    converted: &'a mut Vec<Chunk>,
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Self { heads, scale, q, task, out, rows, converted } = self;
        let (group, head_dim) = (heads.group(), heads.head_dim());
        let n = task.n_rows * group;
        rows.reset(n, head_dim);
        for row in 0..task.n_rows {
            let start = (task.first_row + row) * heads.q_width() + task.kv_head * group * head_dim;
            rows.load_queries(lanes, row * group, &q[start..][..group * head_dim], scale);
        }
        if let Some(selected) = task.selected {
            sparse::attend(lanes, heads, &task, selected, rows, converted);
        } else {
            dense(lanes, heads, &task, rows, converted);
        }
        for i in 0..n {
            let row = task.first_row + i / group;
            let start = row * heads.q_width() + (task.kv_head * group + i % group) * head_dim;
            // SAFETY: no other task has this row and this head.
            rows.finish(lanes, i, unsafe { out.part(start, head_dim) });
        }
    }
}

/// Every page up to the last row's position.
#[inline(always)]
fn dense<L: Lanes>(
    lanes: L,
    heads: Heads,
    task: &Task<'_>,
    rows: &mut Rows,
    converted: &mut Vec<Chunk>,
) {
    let (group, head_dim) = (heads.group(), heads.head_dim());
    let n = task.n_rows * group;
    let last = task.start + task.n_rows - 1;
    for (index, page) in task.pages[..=last / PAGE_LEN].iter().enumerate() {
        page.assert_fits(heads);
        let base = index * PAGE_LEN;
        let first = base.saturating_sub(task.start) * group;
        // How many of the page's keys row `i` sees.
        let visible = |i: usize| (task.start + i / group + 1 - base).min(PAGE_LEN);
        let (keys, values) = (heads.keys(task.kv_head), heads.values(task.kv_head));
        let (keys, values) =
            (keys.start / LANES..keys.end / LANES, values.start / LANES..values.end / LANES);
        match &page.elements {
            Elements::F32(page) => {
                attend_page(lanes, &page[keys], &page[values], rows, first..n, visible);
            }
            Elements::F16(page) => {
                let page = half_vectors(page);
                let (keys, values) = (&page[keys], &page[values]);
                if n - first > tile::ROWS_MAX {
                    // Several tiles of rows: converted to f32 once, which is exact.
                    let n_visible = visible(n - 1);
                    convert(lanes, keys, values, n_visible, head_dim, converted);
                    let (keys, values) = converted.split_at(keys.len());
                    attend_page(lanes, keys, values, rows, first..n, visible);
                } else {
                    attend_page(lanes, keys, values, rows, first..n, visible);
                }
            }
        }
    }
}

/// Writes the page's keys and values as f32, as far as `n_visible` positions need them.
#[inline(always)]
fn convert<L: Lanes>(
    lanes: L,
    keys: &[[u16; LANES]],
    values: &[[u16; LANES]],
    n_visible: usize,
    head_dim: usize,
    out: &mut Vec<Chunk>,
) {
    out.resize(keys.len() + values.len(), Chunk::ZERO);
    let (keys_out, values_out) = out.split_at_mut(keys.len());
    let n_keys = n_visible.div_ceil(LANES) * head_dim;
    for (half, out) in keys[..n_keys].iter().zip(keys_out) {
        lanes.store(lanes.load_half(half), &mut out.0);
    }
    let n_values = n_visible * head_dim / LANES;
    for (half, out) in values[..n_values].iter().zip(values_out) {
        lanes.store(lanes.load_half(half), &mut out.0);
    }
}
