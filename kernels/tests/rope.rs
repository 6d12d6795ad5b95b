//! Is `cpu::rope` its reference, and does a row depend on nothing but itself?

mod common;

use common::{Random, bits};
use strata_kernels::cpu::{RopeAngles, RopeError, RopeTable, rope};
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference;

/// Both compute the angle in f64 and round sine and cosine once; two products and a sum of numbers
/// up to 3, fused here and not there: three half steps of 2.4e-7.
const TOLERANCE: f32 = 4.0e-7;

#[test]
fn heads_turn_as_in_the_reference_and_rows_depend_on_nothing_else() {
    let pools = [Pool::new(1), Pool::new(3)];
    let factors: Vec<f32> = (0..24).map(|pair| 1.0 + pair as f32 / 3.0).collect();
    for (head_dim, n_rot, n_heads) in
        [(64, 64, 9), (16, 16, 1), (80, 32, 2), (48, 48, 3), (16, 6, 2)]
    {
        let factors = (n_rot == 48).then_some(&factors[..]);
        let (base, scale) = if n_rot == 32 { (5.0e5, 0.25) } else { (1.0e4, 1.0) };
        let table = RopeTable::new(n_rot, base, scale, factors).unwrap();
        for positions in [vec![], vec![0], vec![4_000_000], (17..117).collect()] {
            let width = n_heads * head_dim;
            let x = Random(7).values(positions.len() * width, 2.0);
            let mut angles = RopeAngles::default();
            table.angles(positions.iter().copied(), &mut angles);
            let mut expected = x.clone();
            for (row, &position) in expected.chunks_exact_mut(width).zip(&positions) {
                for head in row.chunks_exact_mut(head_dim) {
                    reference::rope::rope(head, n_rot, position, base, scale, factors);
                }
            }
            let mut first: Option<Vec<u32>> = None;
            for isa in Isa::available() {
                for pool in &pools {
                    let mut turned = x.clone();
                    rope(pool, isa, &mut turned, head_dim, &angles);
                    for (y, expected) in turned.iter().zip(&expected) {
                        assert!((y - expected).abs() <= TOLERANCE, "{y}, not {expected}");
                    }
                    let same = first.get_or_insert_with(|| bits(&turned));
                    assert_eq!(*same, bits(&turned));
                }
            }
            if let Some(&last) = positions.last() {
                let start = (positions.len() - 1) * width;
                let mut alone = x[start..].to_vec();
                table.angles([last], &mut angles);
                rope(&pools[0], Isa::detect(), &mut alone, head_dim, &angles);
                assert_eq!(bits(&alone), first.expect("at least one level")[start..]);
            }
        }
    }
}

#[test]
fn a_planted_value_shows_in_its_pair_only() {
    let table = RopeTable::new(16, 1.0e4, 1.0, None).unwrap();
    let mut angles = RopeAngles::default();
    table.angles([5], &mut angles);
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 32];
            x[5] = bad;
            rope(&Pool::new(1), isa, &mut x, 32, &angles);
            for (index, x) in x.iter().enumerate() {
                assert_eq!(x.is_finite(), ![4, 5].contains(&index));
            }
        }
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let new = RopeTable::new;
    assert_eq!(new(0, 1.0e4, 1.0, None), Err(RopeError::Width(0)));
    assert_eq!(new(7, 1.0e4, 1.0, None), Err(RopeError::Width(7)));
    new(8, f64::NAN, 1.0, None).unwrap_err();
    new(8, 1.0e4, 0.0, None).unwrap_err();
    new(8, 1.0e4, 1.0, Some(&[1.0, 0.0, 1.0, 1.0])).unwrap_err();
    let short = new(8, 1.0e4, 1.0, Some(&[1.0])).unwrap_err();
    assert_eq!(short.to_string(), "1 rotary factors, but there are 4 pairs");
}
