//! Is `cpu::gated_rms_norm` its reference?

mod common;

use common::{Random, bits};
use strata_kernels::cpu::{Gate, gated_rms_norm};
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference;

/// Relative: that of `rms_norm`, and the gate's.
const TOLERANCE: f32 = 5.0e-6;

#[test]
fn rows_are_those_of_the_reference() {
    for width in [16, 32, 128] {
        let mut random = Random(width as u64);
        let (x, gate) = (random.values(21 * width, 3.0), random.values(21 * width, 6.0));
        let weight = random.values(width, 2.0);
        for kind in [Gate::Sigmoid, Gate::Silu] {
            let mut expected = vec![0.0; x.len()];
            let reference = reference::gated_rms_norm::gated_rms_norm;
            reference(&x, &weight, 1e-6, &gate, kind, &mut expected);
            let mut first: Option<Vec<u32>> = None;
            for isa in Isa::available() {
                let mut out = vec![f32::NAN; x.len()];
                gated_rms_norm(&Pool::new(2), isa, &x, &weight, 1e-6, &gate, kind, &mut out);
                for (y, expected) in out.iter().zip(&expected) {
                    let near = (y - expected).abs() <= TOLERANCE * expected.abs();
                    assert!(near, "{y}, not {expected}");
                }
                assert_eq!(*first.get_or_insert_with(|| bits(&out)), bits(&out));
            }
        }
    }
}
