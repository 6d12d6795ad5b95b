//! How row-wise operations share their rows among threads.

use std::ops::Range;

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
