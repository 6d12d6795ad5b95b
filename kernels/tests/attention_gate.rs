//! Is `cpu::attention_gate` its reference, and does an element depend on nothing but itself?

mod common;

use common::{Random, assert_near, bits, same_everywhere};
use strata_kernels::cpu::{sigmoid_mul, split_heads};
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference::attention_gate as reference;

/// Relative: two exponentials within 1.5 steps of 6e-8 of the truth, and three roundings each.
const TOLERANCE: f32 = 6.0e-7;

#[test]
fn heads_part_as_in_the_reference() {
    for (n, head_dim) in [(0, 4), (1, 1), (6, 64), (200, 256), (3, 17)] {
        let x = Random(5).values(n * 2 * head_dim, 1.0);
        let (mut q, mut gate) = (vec![0.0; x.len() / 2], vec![0.0; x.len() / 2]);
        reference::split_heads(&x, head_dim, &mut q, &mut gate);
        for n_threads in [1, 3] {
            let mut parted = (vec![0.0; q.len()], vec![0.0; q.len()]);
            let pool = Pool::new(n_threads);
            split_heads(&pool, &x, head_dim, &mut parted.0, &mut parted.1);
            assert_eq!((bits(&parted.0), bits(&parted.1)), (bits(&q), bits(&gate)));
        }
    }
}

#[test]
fn gated_elements_are_those_of_the_reference() {
    for n in [0, 1, 15, 16, 17, 16 * 4096 + 5] {
        let mut random = Random(n as u64 + 1);
        let (x, gate) = (random.values(n, 4.0), random.values(n, 30.0));
        let out = same_everywhere(|pool, isa| {
            let mut out = x.clone();
            sigmoid_mul(pool, isa, &mut out, &gate);
            out
        });
        let mut expected = x.clone();
        reference::sigmoid_mul(&mut expected, &gate);
        assert_near(&out, &expected, TOLERANCE, 0.0);
        if n > 1 {
            let mut alone = [x[n - 1]];
            sigmoid_mul(&Pool::new(1), Isa::detect(), &mut alone, &gate[n - 1..]);
            assert_eq!(bits(&alone), bits(&out[n - 1..]));
        }
    }
}

#[test]
fn far_gates_saturate_and_what_is_not_finite_shows() {
    for isa in Isa::available() {
        let gate = [-200.0, 200.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 0.0];
        let mut x = [2.0, 2.0, 2.0, 2.0, 2.0, f32::INFINITY];
        sigmoid_mul(&Pool::new(1), isa, &mut x, &gate);
        assert_eq!(x[..4], [0.0, 2.0, 0.0, 2.0]);
        assert!(x[4].is_nan());
        assert_eq!(x[5], f32::INFINITY);
    }
}
