//! Is `cpu::rms_norm` its reference, and does a row depend on nothing but itself?

mod common;

use common::{Random, assert_near, bits, same_everywhere};
use strata_kernels::cpu::{rms_norm, rms_norm_streams};
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference;

/// Relative. The mean of n squares differs by the order of its sum: sixteen lanes against one
/// chain, whose roundings at n = 4099 add up to about 64 half steps of 6e-8; half of that after the
/// square root, and three more roundings.
const TOLERANCE: f32 = 4.0e-6;

const EPS: f32 = 1.0e-5;
const WIDTHS: [usize; 9] = [1, 2, 15, 16, 17, 31, 576, 4096, 4099];

#[test]
fn rows_are_those_of_the_reference_and_depend_on_nothing_else() {
    let pools = [Pool::new(1), Pool::new(3)];
    for width in WIDTHS {
        for n_rows in [0, 1, 2, 40] {
            let mut random = Random(width as u64);
            let (x, weight) = (random.values(n_rows * width, 3.0), random.values(width, 2.0));
            let mut expected = vec![0.0; x.len()];
            reference::rms_norm::rms_norm(&x, &weight, EPS, &mut expected);
            let mut first: Option<Vec<u32>> = None;
            for isa in Isa::available() {
                for pool in &pools {
                    let mut out = vec![f32::NAN; x.len()];
                    rms_norm(pool, isa, &x, &weight, EPS, &mut out);
                    for (y, expected) in out.iter().zip(&expected) {
                        let near = (y - expected).abs() <= TOLERANCE * expected.abs();
                        assert!(near, "width {width}: {y}, not {expected}");
                    }
                    let same = first.get_or_insert_with(|| bits(&out));
                    assert_eq!(*same, bits(&out), "width {width} on {}", isa.name());
                }
            }
            if n_rows > 0 {
                let start = (n_rows - 1) * width;
                let mut alone = vec![0.0; width];
                rms_norm(&pools[0], Isa::detect(), &x[start..], &weight, EPS, &mut alone);
                assert_eq!(bits(&alone), first.expect("at least one level")[start..]);
            }
        }
    }
}

#[test]
fn a_planted_value_shows_in_its_row_and_in_no_other() {
    let pool = Pool::new(1);
    let (width, n_rows) = (37, 3);
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 16, 36] {
                let mut x = Random(1).values(n_rows * width, 3.0);
                x[width + place] = bad;
                let mut out = vec![0.0; x.len()];
                rms_norm(&pool, isa, &x, &vec![1.0; width], EPS, &mut out);
                for (row, out) in out.chunks_exact(width).enumerate() {
                    // An infinity makes the scale 0, and itself NaN.
                    assert_eq!(out.iter().any(|y| !y.is_finite()), row == 1);
                }
            }
        }
    }
}

#[test]
fn streams_are_normed_each_by_itself() {
    for (n_streams, stream_width, n_rows) in [(4, 37, 5), (1, 16, 2), (4, 128, 40), (3, 1, 1)] {
        let width = n_streams * stream_width;
        let mut random = Random(11);
        let (mut x, weight) = (random.values(n_rows * width, 3.0), random.values(width, 2.0));
        // One stream far larger than the others: it must not shrink them.
        x[..stream_width].iter_mut().for_each(|x| *x *= 1.0e6);
        let out = same_everywhere(|pool, isa| {
            let mut out = vec![f32::NAN; x.len()];
            rms_norm_streams(pool, isa, &x, &weight, n_streams, EPS, &mut out);
            out
        });
        let mut expected = vec![0.0; x.len()];
        reference::rms_norm::rms_norm_streams(&x, &weight, n_streams, EPS, &mut expected);
        assert_near(&out, &expected, TOLERANCE, 0.0);
        let (pool, isa) = (Pool::new(1), Isa::detect());
        let mut alone = vec![0.0; stream_width];
        let last = x.len() - stream_width..;
        rms_norm(&pool, isa, &x[last.clone()], &weight[width - stream_width..], EPS, &mut alone);
        assert_eq!(bits(&alone), bits(&out[last]));
    }
}
