//! Does every task of a run happen exactly once, whatever happens meanwhile?

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use strata_kernels::pool::Pool;

#[test]
fn every_task_is_done_once() {
    for n_threads in [1, 2, 3, 8] {
        let pool = Pool::new(n_threads);
        for n_tasks in [0, 1, 2, 3, 7, 100] {
            for _ in 0..20 {
                let counts: Vec<_> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(n_tasks, &|index| {
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }
}

#[test]
fn a_run_inside_a_task_is_done_by_its_thread() {
    let pool = Pool::new(3);
    let count = AtomicUsize::new(0);
    pool.run(4, &|_| {
        pool.run(5, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(count.into_inner(), 20);
}

#[test]
fn a_panicking_task_reaches_the_caller_and_leaves_the_pool_usable() {
    let pool = Pool::new(4);
    for bad in [0, 5, 31] {
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(32, &|index| assert_ne!(index, bad, "planted"));
        }));
        assert!(result.is_err());
    }
    let count = AtomicUsize::new(0);
    pool.run(64, &|_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(count.into_inner(), 64);
}

#[test]
fn two_threads_may_run_at_once() {
    let pool = Pool::new(2);
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..50 {
                    pool.run(8, &|_| {
                        count.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 3 * 50 * 8);
}
