//! The loop in which cells spend their time: tiles of sums that stay in registers.

use crate::cpu::lanes::{Chunk, LANES, Lanes};

/// Some columns of a matrix of vectors: vector `w` of row `k` is at `first + k * step + w`.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a> {
    pub(super) vectors: &'a [Chunk],
    pub(super) first: usize,
    pub(super) step: usize,
}

/// `sums[r][w] += factors[r][k] * columns[k][w]`, fused, for `k` in `0..n` in order.
#[inline(always)]
pub(super) fn add_product<L: Lanes, const R: usize, const W: usize>(
    lanes: L,
    factors: [&[f32]; R],
    columns: Columns<'_>,
    n: usize,
    mut sums: [[L::Float; W]; R],
) -> [[L::Float; W]; R] {
    let Columns { vectors, first, step } = columns;
    for factors in factors {
        assert!(n <= factors.len(), "a factor for each row");
    }
    let end = first + n.saturating_sub(1) * step + W;
    assert!(n == 0 || end <= vectors.len(), "a vector for each row");
    for k in 0..n {
        let mut tile = [lanes.splat(0.0); W];
        for (w, vector) in tile.iter_mut().enumerate() {
            // SAFETY: below `end`, which is at most the length.
            *vector = lanes.load(unsafe { &vectors.get_unchecked(first + k * step + w).0 });
        }
        for r in 0..R {
            // SAFETY: `k < n`, and `n` is at most the length.
            let factor = lanes.splat(unsafe { *factors[r].get_unchecked(k) });
            for w in 0..W {
                sums[r][w] = lanes.fma(factor, tile[w], sums[r][w]);
            }
        }
    }
    sums
}

/// Vectors as the floats they are.
#[inline(always)]
pub(super) fn floats(vectors: &[Chunk]) -> &[f32] {
    // SAFETY: a chunk is sixteen floats in a row and nothing else: its size is its alignment.
    unsafe { std::slice::from_raw_parts(vectors.as_ptr().cast(), vectors.len() * LANES) }
}

/// `R` rows of a matrix from row `first` on, `width` floats each.
#[inline(always)]
pub(super) fn rows<const R: usize>(matrix: &[f32], first: usize, width: usize) -> [&[f32]; R] {
    let mut rows: [&[f32]; R] = [&[]; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &matrix[(first + r) * width..][..width];
    }
    rows
}
