//! Weights of any format with `f32` activations: some rows at a time are expanded to f32, exactly,
//! into the thread's scratch, and multiplied as F32 weights are (`float.rs`).

use std::cell::RefCell;

use super::super::activations::Activations;
use super::super::pool::Pool;
use super::super::shared_mut::SharedMut;
use super::float;
use crate::isa::Isa;
use crate::reference::dequantize::dequantize_row;
use crate::tensor::WeightView;

/// Weight rows that are expanded together.
const BLOCK_ROWS: usize = 32;

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// The product, whatever the format of `w`.
pub(super) fn run(pool: &Pool, isa: Isa, w: &WeightView<'_>, x: &Activations, y: &mut [f32]) {
    let (n_rows, cols) = (w.rows(), w.cols());
    let y = SharedMut::new(y);
    super::split(pool, n_rows.div_ceil(BLOCK_ROWS), &|first, count| {
        SCRATCH.with_borrow_mut(|scratch| {
            for block in first..first + count {
                let rows = block * BLOCK_ROWS..((block + 1) * BLOCK_ROWS).min(n_rows);
                scratch.resize(BLOCK_ROWS * cols, 0.0);
                for (row, out) in rows.clone().zip(scratch.chunks_exact_mut(cols)) {
                    dequantize_row(w.format(), w.row(row), out);
                }
                // SAFETY: no other task has these rows of the result.
                unsafe { float::expanded_rows(isa, scratch, cols, rows, n_rows, x, y) };
            }
        });
    });
}
