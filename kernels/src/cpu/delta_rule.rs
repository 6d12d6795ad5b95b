//! The gated delta rule: a state that forgets, and learns what it predicted wrongly.
//!
//! Per value head, with `q` and `k` normed to length 1 (`q` then divided by the root of the head's
//! width), `g = a softplus(alpha + dt)` and `b = sigmoid(beta)`:
//!
//! - `S ← e^g S;  d = b (v - Sᵀ k);  S ← S + k dᵀ;  out = Sᵀ q`
//!
//! Computed so position after position (`recurrent.rs`), or by cells of 64 (`cell.rs`). Columns of
//! the state do not meet: both work on strips of a few vectors of them, which stay in the
//! first-level cache from row to row, and a task takes some strips of one head.
//!
//! Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024; Yang et al., "Parallelizing
//! Linear Transformers with the Delta Rule over Sequence Length", 2024.

mod cell;
mod product;
mod recurrent;
mod rows;
mod shape;

use std::cell::RefCell;
use std::ops::Range;

use self::rows::Rows;
pub use self::shape::{DeltaForm, DeltaInputs, DeltaShape, DeltaShapeError, KeyHeads};
use super::lanes::{Chunk, Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// Positions of a cell.
const CELL: usize = 64;

/// Fewest vectors of columns worth a task: what all columns need (lengths of keys, their products)
/// is computed once a task.
const TASK_CHUNKS_MIN: usize = 4;

/// Tasks per thread: enough that one slow thread does not hold up the others for long.
const TASKS_PER_THREAD: usize = 4;

/// Takes the rows of one sequence into its state.
///
/// # Shapes
///
/// `inputs`: see [`DeltaInputs`]; `state`: `(n_value_heads, head_dim, head_dim)`, key by value,
/// zeros at the start; `out`: `(n_tokens, value_width)`.
///
/// # Panics
///
/// When the lengths do not fit those shapes.
pub fn delta_rule(
    pool: &Pool,
    isa: Isa,
    shape: DeltaShape,
    inputs: &DeltaInputs<'_>,
    form: DeltaForm,
    state: &mut [f32],
    out: &mut [f32],
) {
    let n_rows = inputs.n_rows(&shape);
    assert!(
        state.len() == shape.state_len() && out.len() == n_rows * shape.value_width(),
        "delta_rule: state {}, out {} for {n_rows} rows of {shape:?}",
        state.len(),
        out.len()
    );
    if n_rows == 0 {
        return;
    }
    let (state, out) = (SharedMut::new(state), SharedMut::new(out));
    let n_chunks = shape.head_dim() / LANES;
    let n_parts = parts(pool.threads(), shape.n_value_heads(), n_chunks);
    pool.run(shape.n_value_heads() * n_parts, &|index| {
        let (head, part) = (index / n_parts, index % n_parts);
        let chunks = part * n_chunks / n_parts..(part + 1) * n_chunks / n_parts;
        let task = Task { shape, inputs, head, chunks, state, out };
        // Outside of `dispatch`: what runs inside a foreign closure is not compiled for its level.
        SCRATCH.with_borrow_mut(|scratch| task.run(isa, form, n_rows, scratch));
    });
}

/// Into how many tasks the columns of a head are cut.
fn parts(n_threads: usize, n_heads: usize, n_chunks: usize) -> usize {
    let wanted = match n_threads {
        1 => 1,
        n_threads => (n_threads * TASKS_PER_THREAD).div_ceil(n_heads),
    };
    wanted.min(n_chunks / TASK_CHUNKS_MIN).max(1)
}

/// Memory of one thread, reused.
#[derive(Debug)]
struct Scratch {
    rows: Rows,
    cell: cell::Products,
    /// Some columns of a state: `(head_dim, width of a strip)`.
    strip: Vec<Chunk>,
    /// The same columns of what a cell's rows learn: `(CELL, width of a strip)`.
    learnt: Vec<Chunk>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch {
            rows: Rows::new(),
            cell: cell::Products::new(),
            strip: Vec::new(),
            learnt: Vec::new(),
        })
    };
}

/// Some columns of one value head.
struct Task<'a> {
    shape: DeltaShape,
    inputs: &'a DeltaInputs<'a>,
    head: usize,
    /// Vectors of columns.
    chunks: Range<usize>,
    state: SharedMut<'a, f32>,
    out: SharedMut<'a, f32>,
}

impl Task<'_> {
    fn run(&self, isa: Isa, form: DeltaForm, n_rows: usize, scratch: &mut Scratch) {
        let mut first = 0;
        while first < n_rows {
            let (count, is_cell) = next_block(form, first, n_rows);
            scratch.rows.load_gates(&self.shape, self.inputs, self.head, first..first + count);
            dispatch(isa, Block { task: self, first, is_cell, scratch });
            first += count;
        }
    }

    /// Vectors of this head in a row of values, from vector `chunk` on.
    #[inline(always)]
    fn values(&self, row: usize, chunk: usize) -> &[[f32; LANES]] {
        let s = self.shape.head_dim();
        let start = 2 * self.shape.n_key_heads() * s + self.head * s + chunk * LANES;
        let row = &self.inputs.qkv[row * self.shape.qkv_width()..][..self.shape.qkv_width()];
        row[start..].as_chunks().0
    }

    /// `W` vectors of a row of the result.
    #[expect(clippy::mut_from_ref, reason = "a part of a slice that tasks share")]
    #[inline(always)]
    fn out<const W: usize>(&self, row: usize, chunk: usize) -> &mut [[f32; LANES]] {
        let s = self.shape.head_dim();
        let start = row * self.shape.value_width() + self.head * s + chunk * LANES;
        // SAFETY: these columns of this head are this task's alone, and used one row at a time.
        unsafe { self.out.part(start, W * LANES) }.as_chunks_mut().0
    }

    /// `W` vectors of the state's row for one element of the key.
    #[expect(clippy::mut_from_ref, reason = "a part of a slice that tasks share")]
    #[inline(always)]
    fn state<const W: usize>(&self, key: usize, chunk: usize) -> &mut [[f32; LANES]] {
        let s = self.shape.head_dim();
        let start = (self.head * s + key) * s + chunk * LANES;
        // SAFETY: as in `out`.
        unsafe { self.state.part(start, W * LANES) }.as_chunks_mut().0
    }
}

/// How many rows from `first` on are taken together, and whether they are a whole cell.
fn next_block(form: DeltaForm, first: usize, n_rows: usize) -> (usize, bool) {
    let left = n_rows - first;
    match form {
        DeltaForm::Recurrent => (left.min(CELL), false),
        DeltaForm::Grid { start } => {
            let count = left.min(CELL - (start % CELL + first) % CELL);
            (count, count == CELL)
        }
    }
}

/// Up to 64 rows of a task.
struct Block<'a> {
    task: &'a Task<'a>,
    first: usize,
    is_cell: bool,
    scratch: &'a mut Scratch,
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Task { shape, inputs, head, .. } = self.task;
        self.scratch.rows.load_keys(lanes, shape, inputs, *head, self.first);
        if L::WIDE {
            self.strips::<L, 4, 4>(lanes);
        } else {
            self.strips::<L, 2, 2>(lanes);
        }
    }
}

impl Block<'_> {
    /// Strips of `W` vectors, then of one; cells by tiles of `R` rows.
    #[inline(always)]
    fn strips<L: Lanes, const R: usize, const W: usize>(self, lanes: L) {
        let Self { task, first, is_cell, scratch } = self;
        let s = task.shape.head_dim();
        scratch.strip.resize(s * W, Chunk::ZERO);
        scratch.learnt.resize(CELL * W, Chunk::ZERO);
        if is_cell {
            scratch.cell.compute::<L, R, W>(lanes, &scratch.rows);
        }
        let mut chunk = task.chunks.start;
        while chunk < task.chunks.end {
            let is_full = chunk + W <= task.chunks.end;
            match (is_cell, is_full) {
                (false, true) => recurrent::run::<L, W>(lanes, task, first, chunk, scratch),
                (false, false) => recurrent::run::<L, 1>(lanes, task, first, chunk, scratch),
                (true, true) => cell::run::<L, R, W>(lanes, task, first, chunk, scratch),
                (true, false) => cell::run::<L, R, 1>(lanes, task, first, chunk, scratch),
            }
            chunk += if is_full { W } else { 1 };
        }
    }
}
