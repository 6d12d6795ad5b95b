//! Which blocks of keys a query attends to: block keys, their scores, and the best few.
//!
//! Block `b` covers tokens `c b .. c (b + 1)`. Its key is the mean of the tokens' raw keys, then
//! normalised, then turned to the position of the first token; a complete block's key never
//! changes. A query with `P` visible tokens sees the tail beyond the last whole block and the
//! `budget / c` best whole blocks by `Σ_j max(0, q_j · κ_b)`; of equal ones the lower index. When
//! there are no more blocks than that, it sees all.

mod shape;

pub use shape::{IndexerError, IndexerShape};

use super::attention::Selected;
use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::rms_norm::rms_norm;
use super::rope::{RopeAngles, RopeTable, rope};
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// Raw keys that are kept at least, so that as many tokens can be taken back.
const RAW_KEPT: usize = 64;

/// The keys of one layer of one sequence.
#[derive(Debug, Clone)]
pub struct IndexerKeys {
    shape: IndexerShape,
    len: usize,
    /// *Shapes*: `(n_blocks, head_dim)`, after norm and rotation.
    blocks: Vec<f32>,
    /// Raw keys of the last tokens. *Shapes*: `(n, head_dim)`.
    raw: Vec<f32>,
}

impl IndexerKeys {
    /// No keys.
    #[must_use]
    pub fn new(shape: IndexerShape) -> Self {
        Self { shape, len: 0, blocks: Vec::new(), raw: Vec::new() }
    }

    /// Tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        (self.blocks.capacity() + self.raw.capacity()) * size_of::<f32>()
    }

    /// Keys of whole blocks, after norm and rotation. *Shapes*: `(n_blocks, head_dim)`.
    #[must_use]
    pub fn blocks(&self) -> &[f32] {
        &self.blocks
    }

    /// Drops the tokens from `len` on. Gives back whether it could: a block that is then no longer
    /// whole needs the raw keys of its tokens, and only those of the last are kept.
    #[must_use]
    pub fn truncate(&mut self, len: usize) -> bool {
        let Self { shape: IndexerShape { head_dim, block_len, .. }, .. } = *self;
        if len >= self.len {
            return true;
        }
        if len == 0 {
            *self = Self::new(self.shape);
            return true;
        }
        let n_raw = self.raw.len() / head_dim;
        let dropped = self.len - len;
        if n_raw < dropped + len % block_len {
            return false;
        }
        self.raw.truncate((n_raw - dropped) * head_dim);
        self.blocks.truncate(len / block_len * head_dim);
        self.len = len;
        true
    }
}

/// Takes in the raw keys of the next tokens.
///
/// *Shapes*: `raw` `(n, head_dim)`; `norm` `(head_dim)`.
///
/// # Panics
/// When the shapes do not fit.
pub fn indexer_append(
    pool: &Pool,
    isa: Isa,
    keys: &mut IndexerKeys,
    raw: &[f32],
    norm: &[f32],
    eps: f32,
    table: &RopeTable,
) {
    let IndexerShape { head_dim, block_len, .. } = keys.shape;
    assert!(raw.len().is_multiple_of(head_dim) && norm.len() == head_dim, "rows of {head_dim}");
    let (mut pooled, mut firsts) = (Vec::new(), Vec::new());
    for row in raw.chunks_exact(head_dim) {
        keys.raw.extend_from_slice(row);
        keys.len += 1;
        if keys.len.is_multiple_of(block_len) {
            let rows = &keys.raw[keys.raw.len() - block_len * head_dim..];
            pool_block(rows, head_dim, &mut pooled);
            firsts.push(u32::try_from(keys.len - block_len).unwrap_or(u32::MAX));
        }
    }
    let kept = (RAW_KEPT + block_len) * head_dim;
    if keys.raw.len() > 2 * kept {
        keys.raw.drain(..keys.raw.len() - kept);
    }
    let mut turned = vec![0.0; pooled.len()];
    rms_norm(pool, isa, &pooled, norm, eps, &mut turned);
    let mut angles = RopeAngles::default();
    table.angles(firsts, &mut angles);
    rope(pool, isa, &mut turned, head_dim, &angles);
    keys.blocks.extend_from_slice(&turned);
}

/// The mean of some rows: their sum in order, then one product.
fn pool_block(rows: &[f32], head_dim: usize, out: &mut Vec<f32>) {
    let n = rows.len() / head_dim;
    #[expect(clippy::cast_precision_loss, reason = "a block is far below 2^24 tokens")]
    let scale = 1.0 / n as f32;
    let first = out.len();
    out.extend_from_slice(&rows[..head_dim]);
    let mean = &mut out[first..];
    for row in rows[head_dim..].chunks_exact(head_dim) {
        mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    mean.iter_mut().for_each(|sum| *sum *= scale);
}

/// What each row of a part sees. Reused from pass to pass.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    block_len: usize,
    /// Blocks that a sparse row sees.
    n_chosen: usize,
    start: usize,
    /// Rows that see all; they come first.
    n_dense: usize,
    /// *Shapes*: `(n_sparse, n_chosen)`, rising in each row.
    blocks: Vec<u32>,
}

impl Selection {
    /// What row `row` sees, if that is not all.
    pub(super) fn row(&self, row: usize) -> Option<Selected<'_>> {
        let sparse = row.checked_sub(self.n_dense)?;
        let visible = self.start + row + 1;
        Some(Selected {
            block_len: self.block_len,
            blocks: &self.blocks[sparse * self.n_chosen..][..self.n_chosen],
            tail: visible / self.block_len * self.block_len,
        })
    }

    /// The blocks that a row sees besides the tail, rising; `None` is all of them.
    #[must_use]
    pub fn blocks(&self, row: usize) -> Option<&[u32]> {
        self.row(row).map(|selected| selected.blocks)
    }
}

/// Chooses blocks for rows at `start`, `start + 1`, …, whose own keys `keys` holds already.
///
/// *Shapes*: `queries` `(n, n_heads, head_dim)`, after norm and rotation.
///
/// # Panics
/// When rows are not whole, or `keys` do not reach them.
pub fn indexer_select(
    pool: &Pool,
    isa: Isa,
    keys: &IndexerKeys,
    start: usize,
    queries: &[f32],
    out: &mut Selection,
) {
    let shape = keys.shape;
    assert!(queries.len().is_multiple_of(shape.q_width()), "rows of {}", shape.q_width());
    let n_rows = queries.len() / shape.q_width();
    assert!(start + n_rows <= keys.len, "{} keys for row {}", keys.len, start + n_rows);
    let n_chosen = shape.budget / shape.block_len;
    // The first count of visible tokens at which there is a block too many.
    let sparse_from = (n_chosen + 1) * shape.block_len;
    let n_dense = sparse_from.saturating_sub(start + 1).min(n_rows);
    out.block_len = shape.block_len;
    out.n_chosen = n_chosen;
    out.start = start;
    out.n_dense = n_dense;
    out.blocks.clear();
    out.blocks.resize((n_rows - n_dense) * n_chosen, 0);
    let blocks = SharedMut::new(&mut out.blocks);
    pool.run(n_rows - n_dense, &|sparse| {
        let row = n_dense + sparse;
        let n_blocks = (start + row + 1) / shape.block_len;
        let query = &queries[row * shape.q_width()..][..shape.q_width()];
        let mut scores = vec![0.0; n_blocks];
        let block_keys = &keys.blocks[..n_blocks * shape.head_dim];
        dispatch(
            isa,
            Score { query, keys: block_keys, head_dim: shape.head_dim, out: &mut scores },
        );
        // SAFETY: each task has its own row.
        choose(&scores, unsafe { blocks.part(sparse * n_chosen, n_chosen) });
    });
}

/// The indices of the largest scores, of equal ones the lower, rising.
fn choose(scores: &[f32], out: &mut [u32]) {
    let mut order: Vec<u32> = (0..).take(scores.len()).collect();
    let rank =
        |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
    order.select_nth_unstable_by(out.len() - 1, rank);
    out.copy_from_slice(&order[..out.len()]);
    out.sort_unstable();
}

struct Score<'a> {
    query: &'a [f32],
    keys: &'a [f32],
    head_dim: usize,
    out: &'a mut [f32],
}

impl Kernel for Score<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for (key, out) in self.keys.chunks_exact(self.head_dim).zip(self.out) {
            let mut total = 0.0;
            for query in self.query.chunks_exact(self.head_dim) {
                let mut sum = lanes.splat(0.0);
                for (q, k) in query.as_chunks::<LANES>().0.iter().zip(key.as_chunks::<LANES>().0) {
                    sum = lanes.fma(lanes.load(q), lanes.load(k), sum);
                }
                let score = lanes.sum(sum);
                // Not `max`: a NaN must stay.
                total += if score < 0.0 { 0.0 } else { score };
            }
            *out = total;
        }
    }
}
