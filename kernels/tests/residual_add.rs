//! Are `cpu::residual_add` and `cpu::add_bias` their references? Single additions: equal bits.

mod common;

use common::{Random, bits};
use strata_kernels::cpu::{add_bias, residual_add};
use strata_kernels::pool::Pool;
use strata_kernels::reference::residual_add as reference;

#[test]
fn sums_are_those_of_the_reference_at_any_thread_count() {
    for pool in [Pool::new(1), Pool::new(3)] {
        for n in [0, 1, 15, 16, 17, 576, 100_003] {
            let mut random = Random(n as u64 + 1);
            let (mut x, y) = (random.values(n, 3.0), random.values(n, 3.0));
            let mut expected = x.clone();
            reference::residual_add(&mut expected, &y);
            residual_add(&pool, &mut x, &y);
            assert_eq!(bits(&x), bits(&expected));
        }
        for (width, n_rows) in [(1, 0), (1, 1), (17, 3), (576, 100)] {
            let mut random = Random(width as u64);
            let (mut x, bias) = (random.values(n_rows * width, 3.0), random.values(width, 3.0));
            let mut expected = x.clone();
            reference::add_bias(&mut expected, &bias);
            add_bias(&pool, &mut x, &bias);
            assert_eq!(bits(&x), bits(&expected));
        }
    }
}

#[test]
fn what_is_not_finite_shows() {
    let pool = Pool::new(1);
    let mut x = [1.0, f32::NAN, f32::INFINITY, 1.0, f32::MAX];
    residual_add(&pool, &mut x, &[1.0, 1.0, f32::NEG_INFINITY, f32::NAN, f32::MAX]);
    assert_eq!(x[0], 2.0);
    assert!(x[1..4].iter().all(|x| x.is_nan()) && x[4] == f32::INFINITY);
    let mut x = [1.0, 2.0, 3.0, 4.0];
    add_bias(&pool, &mut x, &[f32::INFINITY, 0.5]);
    assert_eq!(x, [f32::INFINITY, 2.5, f32::INFINITY, 4.5]);
}
