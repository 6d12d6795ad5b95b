//! The rule for a cell of 64 positions at once, as products of matrices.
//!
//! With `G_i` the sum of `g` up to position `i` of the cell, `D_ij = e^(G_i - G_j)` for `i >= j`,
//! `S` the state on entry and rows `k_i`, `q_i`, `v_i`:
//!
//! - `d_i = b_i (v_i - e^(G_i) Sᵀ k_i - sum_(j < i) (k_i · k_j) D_ij d_j)`, one after the other;
//! - `out_i = e^(G_i) Sᵀ q_i + sum_(j <= i) (q_i · k_j) D_ij d_j`;
//! - `S ← e^(G_63) S + sum_i k_i (D_63,i d_i)ᵀ`.
//!
//! (Solved for `d` directly; the papers' `U - W S` is the same with a second system to solve.)
//!
//! `D` is built from row to row by multiplying with `e^(g_i)`, as the state itself would be: no
//! difference of large sums is taken, which would lose digits, and no `e^(-G)`, which would be
//! infinite. All factors are at most 1; they may reach 0, as they should.

use super::product::{Columns, add_product, floats, rows};
use super::rows::Rows;
use super::{CELL, Scratch, Task};
use crate::cpu::lanes::{Chunk, LANES, Lanes};

/// Vectors in a row of a matrix of positions by positions.
const CELL_CHUNKS: usize = CELL / LANES;

/// What all columns need of a cell: products of its rows.
#[derive(Debug)]
pub(super) struct Products {
    /// `(head_dim, CELL)`: the keys, transposed.
    keys: Vec<Chunk>,
    /// `(CELL, CELL)`: `(k_i · k_j) D_ij` for `j < i`.
    of_keys: Vec<Chunk>,
    /// `(CELL, CELL)`: `(q_i · k_j) D_ij` for `j <= i`.
    of_queries: Vec<Chunk>,
    /// `(CELL)`: `e^(G_i)`.
    decay: [f32; CELL],
    /// `(CELL)`: `D_63,i`.
    left: [f32; CELL],
}

impl Products {
    /// Of no cell.
    pub(super) const fn new() -> Self {
        Self {
            keys: Vec::new(),
            of_keys: Vec::new(),
            of_queries: Vec::new(),
            decay: [0.0; CELL],
            left: [0.0; CELL],
        }
    }

    /// Those of 64 rows.
    #[inline(always)]
    pub(super) fn compute<L: Lanes, const R: usize, const W: usize>(
        &mut self,
        lanes: L,
        of: &Rows,
    ) {
        assert_eq!(of.len(), CELL, "rows of a cell");
        self.keys.resize(of.head_dim * CELL_CHUNKS, Chunk::ZERO);
        self.of_keys.resize(CELL * CELL_CHUNKS, Chunk::ZERO);
        self.of_queries.resize(CELL * CELL_CHUNKS, Chunk::ZERO);
        for (row, key) in of.keys.chunks_exact(of.head_dim).enumerate() {
            for (element, &k) in key.iter().enumerate() {
                self.keys[element * CELL_CHUNKS + row / LANES].0[row % LANES] = k;
            }
        }
        let n = of.head_dim;
        multiply_lower::<L, R, W>(lanes, &of.keys, &self.keys, n, &mut self.of_keys);
        multiply_lower::<L, R, W>(lanes, &of.queries, &self.keys, n, &mut self.of_queries);
        self.left = [0.0; CELL];
        let mut decay = 1.0;
        for row in 0..CELL {
            decay *= of.decay[row];
            self.decay[row] = decay;
            self.left.iter_mut().for_each(|left| *left *= of.decay[row]);
            self.left[row] = 1.0;
            // Beyond the row itself this multiplies by zero what is never read.
            for (index, left) in self.left.as_chunks::<LANES>().0.iter().enumerate() {
                let (left, at) = (lanes.load(left), row * CELL_CHUNKS + index);
                for product in [&mut self.of_keys[at].0, &mut self.of_queries[at].0] {
                    lanes.store(lanes.mul(lanes.load(product), left), product);
                }
            }
        }
    }
}

/// Products of the rows of `a` (`(CELL, n)`) with all columns of `b` (`(n, CELL)`) up to the
/// diagonal, and a few beyond.
#[inline(always)]
fn multiply_lower<L: Lanes, const R: usize, const W: usize>(
    lanes: L,
    a: &[f32],
    b: &[Chunk],
    n: usize,
    out: &mut [Chunk],
) {
    for row in (0..CELL).step_by(R) {
        for first in (0..=row / LANES).step_by(W) {
            let columns = Columns { vectors: b, first, step: CELL_CHUNKS };
            let zero = [[lanes.splat(0.0); W]; R];
            let sums = add_product::<L, R, W>(lanes, rows(a, row, n), columns, n, zero);
            for (r, sums) in sums.into_iter().enumerate() {
                for (w, sum) in sums.into_iter().enumerate() {
                    lanes.store(sum, &mut out[(row + r) * CELL_CHUNKS + first + w].0);
                }
            }
        }
    }
}

/// Takes a cell into `W` vectors of columns from `chunk` on; its first row is row `first` of the
/// pass.
#[inline(always)]
pub(super) fn run<L: Lanes, const R: usize, const W: usize>(
    lanes: L,
    task: &Task<'_>,
    first: usize,
    chunk: usize,
    scratch: &mut Scratch,
) {
    let Scratch { rows: of, cell, strip, learnt } = scratch;
    let s = of.head_dim;
    let strip = &mut strip[..s * W];
    for (key, to) in strip.as_chunks_mut::<W>().0.iter_mut().enumerate() {
        for (from, to) in task.state::<W>(key, chunk).iter().zip(to) {
            to.0 = *from;
        }
    }
    let strip = Columns { vectors: strip, first: 0, step: W };
    let learnt = &mut learnt[..CELL * W];
    for row in (0..CELL).step_by(R) {
        let tile = Tile { task, of, cell, first, chunk, row };
        tile.run::<L, R, W>(lanes, strip, learnt);
    }
    for (learnt, &left) in learnt.as_chunks_mut::<W>().0.iter_mut().zip(&cell.left) {
        for x in learnt {
            lanes.store(lanes.mul(lanes.load(&x.0), lanes.splat(left)), &mut x.0);
        }
    }
    let learnt = Columns { vectors: learnt, first: 0, step: W };
    let decay = lanes.splat(cell.decay[CELL - 1]);
    let keys = floats(&cell.keys);
    for key in (0..s).step_by(R) {
        let mut sums = [[lanes.splat(0.0); W]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (w, sum) in sums.iter_mut().enumerate() {
                *sum = lanes.mul(decay, lanes.load(&strip.vectors[(key + r) * W + w].0));
            }
        }
        let sums = add_product::<L, R, W>(lanes, rows(keys, key, CELL), learnt, CELL, sums);
        for (r, sums) in sums.into_iter().enumerate() {
            for (sum, to) in sums.into_iter().zip(task.state::<W>(key + r, chunk)) {
                lanes.store(sum, to);
            }
        }
    }
}

/// A few rows of a cell, in some columns.
struct Tile<'a> {
    task: &'a Task<'a>,
    of: &'a Rows,
    cell: &'a Products,
    first: usize,
    chunk: usize,
    row: usize,
}

impl Tile<'_> {
    /// What the rows learn, given what those before them did, and their results.
    #[inline(always)]
    fn run<L: Lanes, const R: usize, const W: usize>(
        &self,
        lanes: L,
        state: Columns<'_>,
        learnt: &mut [Chunk],
    ) {
        let row = self.row;
        let (keys, queries) = (floats(&self.cell.of_keys), floats(&self.cell.of_queries));
        let before = Columns { vectors: learnt, first: 0, step: W };
        let predicted = self.of_state::<L, R, W>(lanes, &self.of.keys, state);
        let mut predicted =
            add_product::<L, R, W>(lanes, rows(keys, row, CELL), before, row, predicted);
        let out = self.of_state::<L, R, W>(lanes, &self.of.queries, state);
        let mut out = add_product::<L, R, W>(lanes, rows(queries, row, CELL), before, row, out);
        let mut new = [[lanes.splat(0.0); W]; R];
        for r in 0..R {
            let values = self.task.values(self.first + row + r, self.chunk);
            let to = self.task.out::<W>(self.first + row + r, self.chunk);
            let rate = lanes.splat(self.of.rate[row + r]);
            for w in 0..W {
                for j in 0..r {
                    let factor = lanes.splat(keys[(row + r) * CELL + row + j]);
                    predicted[r][w] = lanes.fma(factor, new[j][w], predicted[r][w]);
                }
                let wrong = lanes.sub(lanes.load(&values[w]), predicted[r][w]);
                new[r][w] = lanes.mul(rate, wrong);
                lanes.store(new[r][w], &mut learnt[(row + r) * W + w].0);
                for j in 0..=r {
                    let factor = lanes.splat(queries[(row + r) * CELL + row + j]);
                    out[r][w] = lanes.fma(factor, new[j][w], out[r][w]);
                }
                lanes.store(out[r][w], &mut to[w]);
            }
        }
    }

    /// `e^(G_i) Sᵀ x_i` for the rows `x_i` of a matrix.
    #[inline(always)]
    fn of_state<L: Lanes, const R: usize, const W: usize>(
        &self,
        lanes: L,
        x: &[f32],
        state: Columns<'_>,
    ) -> [[L::Float; W]; R] {
        let s = self.of.head_dim;
        let zero = [[lanes.splat(0.0); W]; R];
        let mut sums = add_product::<L, R, W>(lanes, rows(x, self.row, s), state, s, zero);
        for (r, sums) in sums.iter_mut().enumerate() {
            let decay = lanes.splat(self.cell.decay[self.row + r]);
            for sum in sums {
                *sum = lanes.mul(decay, *sum);
            }
        }
        sums
    }
}
