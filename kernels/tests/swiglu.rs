//! Is `cpu::swiglu` its reference, and does an element depend on nothing but itself?

mod common;

use common::{Random, bits};
use strata_kernels::cpu::swiglu;
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference;

/// Relative: two exponentials within 1.5 steps of 6e-8 of the truth, and three roundings each.
const TOLERANCE: f32 = 6.0e-7;

#[test]
fn elements_are_those_of_the_reference_and_depend_on_nothing_else() {
    let pools = [Pool::new(1), Pool::new(3)];
    for n in [0, 1, 15, 16, 17, 1536, 16 * 4096 + 5] {
        let mut random = Random(n as u64 + 1);
        let (gate, up) = (random.values(n, 30.0), random.values(n, 4.0));
        let mut expected = vec![0.0; n];
        reference::swiglu::swiglu(&gate, &up, &mut expected);
        let mut first: Option<Vec<u32>> = None;
        for isa in Isa::available() {
            for pool in &pools {
                let mut out = vec![f32::NAN; n];
                swiglu(pool, isa, &gate, &up, &mut out);
                for (y, expected) in out.iter().zip(&expected) {
                    let near = (y - expected).abs() <= TOLERANCE * expected.abs();
                    assert!(near, "{y}, not {expected}");
                }
                let same = first.get_or_insert_with(|| bits(&out));
                assert_eq!(*same, bits(&out), "{n} elements on {}", isa.name());
            }
        }
        if n > 3 {
            let mut alone = [0.0];
            swiglu(&pools[0], Isa::detect(), &gate[n - 1..], &up[n - 1..], &mut alone);
            assert_eq!(Some(&alone[0].to_bits()), first.expect("at least one level").last());
        }
    }
}

#[test]
fn far_gates_saturate_and_what_is_not_finite_shows() {
    let pool = Pool::new(1);
    for isa in Isa::available() {
        let gate = [-200.0, 200.0, 1.0, 1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0];
        let up = [2.0, 2.0, f32::NAN, f32::NEG_INFINITY, 1.0, 1.0, 1.0, f32::INFINITY];
        let mut out = [0.0; 8];
        swiglu(&pool, isa, &gate, &up, &mut out);
        assert_eq!(out[..2], [0.0, 400.0]);
        assert!(out[2..].iter().all(|y| !y.is_finite()), "{out:?}");
    }
}
