//! One page of keys and values against a few query rows, in four steps:
//!
//! 1. scores: lanes over keys, a fused multiply-add per element of the head, in order;
//! 2. the page's greatest score, and with it the new greatest of the row;
//! 3. weights `exp(score - greatest)`; what was summed before shrinks by `exp(old - new)`;
//! 4. values: lanes over elements, a fused multiply-add per position, in order.
//!
//! Steps 1 and 4 are the same loop, [`accumulate`], over tiles that stay in registers.

use std::ops::Range;

use super::accumulate::{Vectors, Walk, accumulate};
use super::state::Rows;
use crate::cpu::exp::exp;
use crate::cpu::kv::{PAGE_LEN, TILES};
use crate::cpu::lanes::{LANES, Lanes};

/// Most query rows that share the loads of a page: 6 rows of 4 vectors fill 24 of 32 registers.
pub(super) const ROWS_MAX: usize = 6;

/// Takes a page into the rows of `range`; row `i` sees its first `visible(i)` positions, at least
/// one and never fewer than the row before.
#[inline(always)]
pub(super) fn attend_page<L: Lanes, S: Vectors>(
    lanes: L,
    keys: S,
    values: S,
    rows: &mut Rows,
    range: Range<usize>,
    visible: impl Fn(usize) -> usize,
) {
    let mut first = range.start;
    while first < range.end {
        let page = Page { keys, values };
        first += match range.end - first {
            1 => page.attend::<L, 1>(lanes, rows, first, &visible),
            2 => page.attend::<L, 2>(lanes, rows, first, &visible),
            3 => page.attend::<L, 3>(lanes, rows, first, &visible),
            4 | 5 => page.attend::<L, 4>(lanes, rows, first, &visible),
            _ => page.attend::<L, ROWS_MAX>(lanes, rows, first, &visible),
        };
    }
}

/// A row's scores of a page, then its weights.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Scores([f32; PAGE_LEN]);

impl Scores {
    #[inline(always)]
    fn tile(&mut self, tile: usize) -> &mut [f32; LANES] {
        &mut self.0.as_chunks_mut::<LANES>().0[tile]
    }
}

#[derive(Clone, Copy)]
struct Page<S> {
    keys: S,
    values: S,
}

impl<S: Vectors> Page<S> {
    /// Takes the page into `R` rows from `first` on; gives back `R`.
    #[inline(always)]
    fn attend<L: Lanes, const R: usize>(
        self,
        lanes: L,
        rows: &mut Rows,
        first: usize,
        visible: &impl Fn(usize) -> usize,
    ) -> usize {
        let mut counts = [0; R];
        for (r, count) in counts.iter_mut().enumerate() {
            *count = visible(first + r);
        }
        let mut scores = [Scores([0.0; PAGE_LEN]); R];
        self.score(lanes, rows, first, counts[R - 1].div_ceil(LANES), &mut scores);
        let shrink = weigh(lanes, rows, first, &counts, &mut scores);
        self.sum_values(lanes, rows, first, &counts, &scores, &shrink);
        R
    }

    /// Step 1, for the first `n_tiles` tiles of keys.
    #[inline(always)]
    fn score<L: Lanes, const R: usize>(
        self,
        lanes: L,
        rows: &Rows,
        first: usize,
        n_tiles: usize,
        scores: &mut [Scores; R],
    ) {
        let head_dim = rows.head_dim;
        let mut queries: [&[f32]; R] = [&[]; R];
        for (r, query) in queries.iter_mut().enumerate() {
            *query = &rows.queries[(first + r) * head_dim..][..head_dim];
        }
        if L::WIDE && n_tiles == TILES {
            let walk = Walk { start: 0, step: 1, tile: head_dim, n: head_dim };
            let zero = [[lanes.splat(0.0); TILES]; R];
            let sums = accumulate(lanes, queries, self.keys, walk, zero);
            for r in 0..R {
                for (t, &sum) in sums[r].iter().enumerate() {
                    lanes.store(sum, scores[r].tile(t));
                }
            }
            return;
        }
        for t in 0..n_tiles {
            let walk = Walk { start: t * head_dim, step: 1, tile: 0, n: head_dim };
            let sums = accumulate(lanes, queries, self.keys, walk, [[lanes.splat(0.0)]; R]);
            for r in 0..R {
                lanes.store(sums[r][0], scores[r].tile(t));
            }
        }
    }

    /// Step 4. `shrink` multiplies what was summed before.
    #[inline(always)]
    fn sum_values<L: Lanes, const R: usize>(
        self,
        lanes: L,
        rows: &mut Rows,
        first: usize,
        counts: &[usize; R],
        scores: &[Scores; R],
        shrink: &[f32; LANES],
    ) {
        let n_chunks = rows.row_chunks();
        let mut chunk = 0;
        if L::WIDE {
            while chunk + 4 <= n_chunks {
                self.sum_chunks::<L, R, 4>(lanes, rows, first, counts, scores, shrink, chunk);
                chunk += 4;
            }
        }
        while chunk < n_chunks {
            self.sum_chunks::<L, R, 1>(lanes, rows, first, counts, scores, shrink, chunk);
            chunk += 1;
        }
    }

    /// Step 4 for `T` vectors of the head from `chunk` on.
    #[inline(always)]
    fn sum_chunks<L: Lanes, const R: usize, const T: usize>(
        self,
        lanes: L,
        rows: &mut Rows,
        first: usize,
        counts: &[usize; R],
        scores: &[Scores; R],
        shrink: &[f32; LANES],
        chunk: usize,
    ) {
        let n_chunks = rows.row_chunks();
        let mut weights: [&[f32]; R] = [&[]; R];
        let mut sums = [[lanes.splat(0.0); T]; R];
        for r in 0..R {
            weights[r] = &scores[r].0;
            let shrink = lanes.splat(shrink[r]);
            let outputs = &rows.outputs[(first + r) * n_chunks + chunk..][..T];
            for t in 0..T {
                sums[r][t] = lanes.mul(lanes.load(&outputs[t].0), shrink);
            }
        }
        // What all rows see, then what only the later rows see.
        let n = counts[0];
        let walk = Walk { start: chunk, step: n_chunks, tile: 1, n };
        let sums = accumulate(lanes, weights, self.values, walk, sums);
        for r in 0..R {
            let mut sums = sums[r];
            if counts[r] > n {
                let start = n * n_chunks + chunk;
                let walk = Walk { start, step: n_chunks, tile: 1, n: counts[r] - n };
                [sums] = accumulate(lanes, [&scores[r].0[n..]], self.values, walk, [sums]);
            }
            let outputs = &mut rows.outputs[(first + r) * n_chunks + chunk..][..T];
            for t in 0..T {
                lanes.store(sums[t], &mut outputs[t].0);
            }
        }
    }
}

/// Steps 2 and 3: scores become weights, the rows' greatest and sums are brought up to date. Gives
/// back by how much each row's earlier sums shrink.
#[inline(always)]
fn weigh<L: Lanes, const R: usize>(
    lanes: L,
    rows: &mut Rows,
    first: usize,
    counts: &[usize; R],
    scores: &mut [Scores; R],
) -> [f32; LANES] {
    let mask = lanes.splat(f32::NEG_INFINITY);
    let mut shrink = [0.0; LANES];
    for r in 0..R {
        let mut greatest = mask;
        for t in 0..counts[r].div_ceil(LANES) {
            let tile = scores[r].tile(t);
            let score = lanes.load(tile);
            // The difference is 0, but NaN if the score is infinite: only the mask may be that.
            let score = lanes.add(score, lanes.sub(score, score));
            let n = (counts[r] - t * LANES).min(LANES);
            let score = if n < LANES { lanes.keep_first(score, n, mask) } else { score };
            greatest = lanes.max(greatest, score);
            lanes.store(score, tile);
        }
        let old = rows.greatest[first + r];
        let page = lanes.greatest(greatest);
        let new = if page > old { page } else { old };
        rows.greatest[first + r] = new;
        shrink[r] = old - new;
    }
    lanes.store(exp(lanes, lanes.load(&shrink)), &mut shrink);
    for r in 0..R {
        let new = lanes.splat(rows.greatest[first + r]);
        let mut sum = lanes.splat(0.0);
        for t in 0..counts[r].div_ceil(LANES) {
            let tile = scores[r].tile(t);
            let weight = exp(lanes, lanes.sub(lanes.load(tile), new));
            sum = lanes.add(sum, weight);
            lanes.store(weight, tile);
        }
        let before = &mut rows.sums[first + r].0;
        lanes.store(lanes.fma(lanes.load(before), lanes.splat(shrink[r]), sum), before);
    }
    shrink
}
