//! Floating-point weights with `f32` activations.
//!
//! The arithmetic of one output, the same for every format, level and number of rows: sixteen
//! partial sums, partial sum `l` taking columns `l, l + 16, …` in order by fused multiply-add, the
//! row being continued with zeros to a multiple of sixteen; then the tree of [`Lanes::sum`].

use std::marker::PhantomData;

use super::super::activations::Activations;
use super::super::lanes::{Kernel, Lanes, dispatch};
use super::super::pool::Pool;
use super::super::shared_mut::SharedMut;
use crate::isa::Isa;
use crate::tensor::WeightView;

/// Weight rows of a task: with a block of activation rows they stay in the second-level cache.
const BLOCK_ROWS: usize = 32;

/// Activation rows that are computed before the weights of a task are read again.
const BLOCK_TOKENS: usize = 16;

/// A floating-point format.
pub(super) trait FloatFormat: Copy + Default + Send + Sync {
    /// Bytes of an element.
    const BYTES: usize;
    /// Sixteen elements.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load<L: Lanes>(lanes: L, from: *const u8) -> L::Float;
}

/// IEEE single precision.
#[derive(Clone, Copy, Default)]
pub(super) struct F32;

impl FloatFormat for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, from: *const u8) -> L::Float {
        // SAFETY: by the caller.
        unsafe { lanes.load_f32(from) }
    }
}

/// IEEE half precision.
#[derive(Clone, Copy, Default)]
pub(super) struct F16;

impl FloatFormat for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, from: *const u8) -> L::Float {
        // SAFETY: by the caller.
        unsafe { lanes.load_f16(from) }
    }
}

/// The upper half of an `f32`.
#[derive(Clone, Copy, Default)]
pub(super) struct Bf16;

impl FloatFormat for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<L: Lanes>(lanes: L, from: *const u8) -> L::Float {
        // SAFETY: by the caller.
        unsafe { lanes.load_bf16(from) }
    }
}

/// The product for weights of format `F`.
pub(super) fn run<F: FloatFormat>(
    pool: &Pool,
    isa: Isa,
    w: &WeightView<'_>,
    x: &Activations,
    y: &mut [f32],
) {
    let (n_rows, n_tokens) = (w.rows(), x.n_tokens());
    let y = SharedMut::new(y);
    super::split(pool, n_rows.div_ceil(BLOCK_ROWS), &|first, count| {
        for block in first..first + count {
            let rows = block * BLOCK_ROWS..((block + 1) * BLOCK_ROWS).min(n_rows);
            let mut token = 0;
            while token < n_tokens {
                let tokens = token..(token + BLOCK_TOKENS).min(n_tokens);
                token = tokens.end;
                let (rows, matrix) = (rows.clone(), Matrix::of(w));
                let x = x.rows();
                dispatch(isa, Block::<F> { w: matrix, x, y, rows, tokens, format: PhantomData });
            }
        }
    });
}

/// The product for the weight rows `rows` of `n_rows`, which `expanded` holds from its start on.
///
/// # Safety
/// No other thread has these rows of `y`.
pub(super) unsafe fn expanded_rows(
    isa: Isa,
    expanded: &[f32],
    cols: usize,
    rows: std::ops::Range<usize>,
    n_rows: usize,
    x: &Activations,
    y: SharedMut<'_, f32>,
) {
    let bytes: &[u8] = {
        // SAFETY: floats are four plain bytes each.
        unsafe { std::slice::from_raw_parts(expanded.as_ptr().cast(), size_of_val(expanded)) }
    };
    let w = Matrix { bytes, first_row: rows.start, n_rows, cols, row_bytes: cols * 4 };
    let n_tokens = x.n_tokens();
    for token in (0..n_tokens).step_by(BLOCK_TOKENS) {
        let tokens = token..(token + BLOCK_TOKENS).min(n_tokens);
        let (x, rows) = (x.rows(), rows.clone());
        dispatch(isa, Block::<F32> { w, x, y, rows, tokens, format: PhantomData });
    }
}

/// Weight rows from some row of a matrix on.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    bytes: &'a [u8],
    /// The row at which `bytes` start.
    first_row: usize,
    /// Rows of the whole matrix.
    n_rows: usize,
    cols: usize,
    row_bytes: usize,
}

impl<'a> Matrix<'a> {
    fn of(w: &WeightView<'a>) -> Self {
        let (n_rows, cols, row_bytes) = (w.rows(), w.cols(), w.row_bytes());
        Self { bytes: w.bytes(), first_row: 0, n_rows, cols, row_bytes }
    }

    #[inline(always)]
    fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[(row - self.first_row) * self.row_bytes..][..self.row_bytes]
    }
}

/// Some weight rows with some activation rows.
struct Block<'a, F> {
    w: Matrix<'a>,
    x: &'a [f32],
    y: SharedMut<'a, f32>,
    rows: std::ops::Range<usize>,
    tokens: std::ops::Range<usize>,
    format: PhantomData<F>,
}

impl<F: FloatFormat> Kernel for Block<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        if L::WIDE {
            self.tiles::<L, 8, 4, 4>(lanes);
        } else {
            self.tiles::<L, 4, 2, 1>(lanes);
        }
    }
}

impl<F: FloatFormat> Block<'_, F> {
    /// Tiles of `R × T`, then `R1 × 1` for the tokens left, then `1 × 1` for the rows left.
    #[inline(always)]
    fn tiles<L: Lanes, const R1: usize, const R: usize, const T: usize>(&self, lanes: L) {
        let mut token = self.tokens.start;
        while token < self.tokens.end {
            let is_full = token + T <= self.tokens.end;
            let (n_tokens, height) = if is_full { (T, R) } else { (1, R1) };
            let mut row = self.rows.start;
            while row < self.rows.end {
                if row + height > self.rows.end {
                    (0..n_tokens).for_each(|t| self.tile::<L, 1, 1>(lanes, row, token + t));
                    row += 1;
                    continue;
                }
                if is_full {
                    self.tile::<L, R, T>(lanes, row, token);
                } else {
                    self.tile::<L, R1, 1>(lanes, row, token);
                }
                row += height;
            }
            token += n_tokens;
        }
    }

    /// `R` weight rows from `row` with `T` activation rows from `token`.
    #[inline(always)]
    fn tile<L: Lanes, const R: usize, const T: usize>(&self, lanes: L, row: usize, token: usize) {
        let n = self.w.cols;
        let (mut w, mut x): ([&[u8]; R], [&[f32]; T]) = ([&[]; R], [&[]; T]);
        for (r, w) in w.iter_mut().enumerate() {
            *w = self.w.row(row + r);
        }
        for (t, x) in x.iter_mut().enumerate() {
            *x = &self.x[(token + t) * n..][..n];
        }
        let mut acc = [[lanes.splat(0.0); T]; R];
        let whole = n / 16 * 16;
        for at in (0..whole).step_by(16) {
            let (mut w16, mut x16) = ([lanes.splat(0.0); R], [lanes.splat(0.0); T]);
            for (x16, x) in x16.iter_mut().zip(x) {
                // SAFETY: sixteen more elements are there.
                *x16 = unsafe { lanes.load_f32(x.as_ptr().add(at).cast()) };
            }
            for (w16, w) in w16.iter_mut().zip(w) {
                // SAFETY: as above.
                *w16 = unsafe { F::load(lanes, w.as_ptr().add(at * F::BYTES)) };
            }
            multiply(lanes, w16, x16, &mut acc);
        }
        if whole < n {
            let (mut w16, mut x16) = ([lanes.splat(0.0); R], [lanes.splat(0.0); T]);
            for (x16, x) in x16.iter_mut().zip(x) {
                let mut last = [0.0; 16];
                last[..n - whole].copy_from_slice(&x[whole..]);
                *x16 = lanes.load(&last);
            }
            for (w16, w) in w16.iter_mut().zip(w) {
                let mut last = [0; 64];
                last[..(n - whole) * F::BYTES].copy_from_slice(&w[whole * F::BYTES..]);
                // SAFETY: sixteen elements of at most four bytes.
                *w16 = unsafe { F::load(lanes, last.as_ptr()) };
            }
            multiply(lanes, w16, x16, &mut acc);
        }
        for t in 0..T {
            // SAFETY: rows of this block, which no other task has.
            let to = unsafe { self.y.part((token + t) * self.w.n_rows + row, R) };
            for (to, acc) in to.iter_mut().zip(&acc) {
                *to = lanes.sum(acc[t]);
            }
        }
    }
}

/// Adds the products of sixteen columns.
#[inline(always)]
fn multiply<L: Lanes, const R: usize, const T: usize>(
    lanes: L,
    w: [L::Float; R],
    x: [L::Float; T],
    acc: &mut [[L::Float; T]; R],
) {
    for (acc, w) in acc.iter_mut().zip(w) {
        for (acc, x) in acc.iter_mut().zip(x) {
            *acc = lanes.fma(w, x, *acc);
        }
    }
}
