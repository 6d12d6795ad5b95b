//! How row-wise operations share their rows among threads, and cut a row into vectors.

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::pool::Pool;

/// Elements worth waking a thread for: some microseconds of the simplest operation.
const TASK_ELEMENTS_MIN: usize = 16 * 1024;

/// Calls `task` with disjoint ranges that cover `0..n_rows`, on the caller alone if there is little
/// to do.
pub(super) fn for_row_ranges(
    pool: &Pool,
    n_rows: usize,
    width: usize,
    task: &(dyn Fn(Range<usize>) + Sync),
) {
    let tasks_max = (n_rows.saturating_mul(width) / TASK_ELEMENTS_MIN).min(pool.threads() * 4);
    if tasks_max <= 1 || pool.threads() == 1 {
        task(0..n_rows);
        return;
    }
    let rows_per_task = n_rows.div_ceil(tasks_max);
    pool.run(n_rows.div_ceil(rows_per_task), &|index| {
        let start = index * rows_per_task;
        task(start..(start + rows_per_task).min(n_rows));
    });
}

/// Calls `task` with disjoint ranges that cover `0..n`, cut between whole vectors, so that no
/// element's place in a vector depends on how they are shared out.
pub(super) fn for_vectors(pool: &Pool, n: usize, task: &(dyn Fn(Range<usize>) + Sync)) {
    for_row_ranges(pool, n.div_ceil(LANES), LANES, &|vectors| {
        task(vectors.start * LANES..(vectors.end * LANES).min(n));
    });
}

/// Up to sixteen elements; the other lanes are zero.
#[inline(always)]
pub(super) fn load<L: Lanes>(lanes: L, from: &[f32]) -> L::Float {
    match from.first_chunk::<LANES>() {
        Some(whole) => lanes.load(whole),
        None => lanes.load_part(from, 0.0),
    }
}

/// The first lanes to up to sixteen elements.
#[inline(always)]
pub(super) fn store<L: Lanes>(lanes: L, v: L::Float, to: &mut [f32]) {
    match to.first_chunk_mut::<LANES>() {
        Some(whole) => lanes.store(v, whole),
        None => lanes.store_part(v, to),
    }
}
