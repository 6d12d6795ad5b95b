//! Is `cpu::causal_conv` its reference, however the rows are cut?

mod common;

use common::{Random, bits};
use strata_kernels::cpu::{ConvShape, causal_conv};
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference;

/// Four products in f32, and the silu of their sum.
const TOLERANCE: f32 = 2.0e-6;

#[test]
fn rows_are_those_of_the_reference_and_cuts_change_no_bit() {
    for (channels, dilation) in [(5, 1), (16, 3), (70, 1), (320, 3)] {
        let shape = ConvShape { channels, kernel: 4, dilation };
        let (n, mut random) = (50, Random(channels as u64));
        let (x, weight) = (random.values(n * channels, 2.0), random.values(4 * channels, 1.0));
        let history = random.values(shape.history_rows() * channels, 2.0);
        let (mut expected, mut after) = (vec![0.0; x.len()], history.clone());
        reference::causal_conv::causal_conv(shape, &x, &weight, &mut after, &mut expected);
        let mut first: Option<Vec<u32>> = None;
        for isa in Isa::available() {
            for cut in [1, 7, n] {
                let (mut out, mut state) = (vec![f32::NAN; x.len()], history.clone());
                let rows = x.chunks(cut * channels).zip(out.chunks_mut(cut * channels));
                for (x, out) in rows {
                    causal_conv(&Pool::new(2), isa, shape, x, &weight, &mut state, out);
                }
                for (y, expected) in out.iter().zip(&expected) {
                    assert!((y - expected).abs() <= TOLERANCE, "{y}, not {expected}");
                }
                assert_eq!(bits(&state), bits(&after));
                assert_eq!(*first.get_or_insert_with(|| bits(&out)), bits(&out));
            }
        }
    }
}
