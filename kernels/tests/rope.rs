//! Is `cpu::rope` its reference, and does a row depend on nothing but itself?

mod common;

use common::{Random, bits};
use strata_kernels::cpu::{RopeAngles, RopeError, RopePairs, RopeTable, rope};
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
    let shapes = [(64, 64, 9), (16, 16, 1), (80, 32, 2), (48, 48, 3), (16, 6, 2), (256, 64, 2)];
    let kinds = [RopePairs::Adjacent, RopePairs::Halves];
    for (pairs, (head_dim, n_rot, n_heads)) in
        kinds.into_iter().flat_map(|pairs| shapes.map(|shape| (pairs, shape)))
    {
        let factors = (n_rot == 48).then_some(&factors[..]);
        let (base, scale) = if n_rot == 32 { (5.0e5, 0.25) } else { (1.0e4, 1.0) };
        let table = RopeTable::new(pairs, n_rot, base, scale, factors).unwrap();
        for positions in [vec![], vec![0], vec![4_000_000], (17..117).collect()] {
            let width = n_heads * head_dim;
            let x = Random(7).values(positions.len() * width, 2.0);
            let mut angles = RopeAngles::default();
            table.angles(positions.iter().copied(), &mut angles);
            let mut expected = x.clone();
            for (row, &position) in expected.chunks_exact_mut(width).zip(&positions) {
                for head in row.chunks_exact_mut(head_dim) {
                    reference::rope::rope(pairs, head, n_rot, position, base, scale, factors);
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
    let table = RopeTable::new(RopePairs::Adjacent, 16, 1.0e4, 1.0, None).unwrap();
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
    let new = |n_rot, base, scale, factors| {
        RopeTable::new(RopePairs::Halves, n_rot, base, scale, factors)
    };
    assert_eq!(new(0, 1.0e4, 1.0, None), Err(RopeError::Width(0)));
    assert_eq!(new(7, 1.0e4, 1.0, None), Err(RopeError::Width(7)));
    new(8, f64::NAN, 1.0, None).unwrap_err();
    new(8, 1.0e4, 0.0, None).unwrap_err();
    new(8, 1.0e4, 1.0, Some(&[1.0, 0.0, 1.0, 1.0])).unwrap_err();
    let short = new(8, 1.0e4, 1.0, Some(&[1.0])).unwrap_err();
    assert_eq!(short.to_string(), "1 rotary factors, but there are 4 pairs");
}

#[test]
fn the_last_position_of_a_long_context_turns_as_exactly_as_the_first() {
    // The angle of pair 0 is 262143 rad: in f32 it would be off by up to 1/64.
    let (position, n_rot, base) = (262_143_u32, 64, 1.0e7_f64);
    let table = RopeTable::new(RopePairs::Halves, n_rot, base, 1.0, None).unwrap();
    let mut angles = RopeAngles::default();
    table.angles([position], &mut angles);
    let x = Random(3).values(256, 2.0);
    let mut turned = x.clone();
    rope(&Pool::new(1), Isa::detect(), &mut turned, 256, &angles);
    for pair in 0..n_rot / 2 {
        let frequency = base.powf(-2.0 * pair as f64 / n_rot as f64);
        let (sine, cosine) = (f64::from(position) * frequency).sin_cos();
        let (a, b) = (f64::from(x[pair]), f64::from(x[pair + n_rot / 2]));
        for (y, expected) in [
            (turned[pair], a * cosine - b * sine),
            (turned[pair + n_rot / 2], a * sine + b * cosine),
        ] {
            assert!((f64::from(y) - expected).abs() <= f64::from(TOLERANCE), "{y}, {expected}");
        }
    }
    assert_eq!(bits(&turned[n_rot..]), bits(&x[n_rot..]), "the rest of the head stays");
}
