//! Is `cpu::ple_gate` its reference, and does a row depend on nothing but itself?

mod common;

use common::{Random, assert_near, bits, same_everywhere};
use strata_kernels::cpu::ple_gate;
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference;

/// Relative. A dot of `n` products up to 1 in sixteen lane sums, over the root of `n`: roundings of
/// at most `n / 16 · 6e-8 · sqrt(n) / 2` in the likeness, of which a sigmoid of a root passes on at
/// most 1/4 / (2 · 1e-3) near the floor and less than 1/8 at likenesses of 1. The operands below
/// stay at least 1e-2 away from it: 1.25 of 1e-6.
const TOLERANCE: f32 = 3.0e-6;

#[test]
fn gated_rows_are_those_of_the_reference() {
    for (n_streams, d_model, n_rows) in
        [(4, 128, 7), (4, 37, 3), (1, 5, 1), (4, 2560, 4), (2, 8, 0)]
    {
        let mut random = Random(9);
        let wide = n_rows * n_streams * d_model;
        let (mut key, query) = (random.values(wide, 2.0), random.values(wide, 2.0));
        // Some alike, some the contrary.
        for (index, (key, query)) in key.iter_mut().zip(&query).enumerate() {
            *key = if index / d_model % 2 == 0 { *query } else { -*query } + 0.25 * *key;
        }
        let value = random.values(n_rows * d_model, 4.0);
        let out = same_everywhere(|pool, isa| {
            let mut out = vec![f32::NAN; wide];
            ple_gate(pool, isa, &key, &query, &value, d_model, n_streams, &mut out);
            out
        });
        let mut expected = vec![0.0; wide];
        let value = &value[..];
        reference::ple_gate::ple_gate(&key, &query, value, d_model, n_streams, &mut expected);
        assert_near(&out, &expected, TOLERANCE, 0.0);
        if n_rows > 0 {
            let last = wide - n_streams * d_model..;
            let (key, query) = (&key[last.clone()], &query[last.clone()]);
            let value = &value[value.len() - d_model..];
            let mut alone = vec![0.0; n_streams * d_model];
            let (pool, isa) = (Pool::new(1), Isa::detect());
            ple_gate(&pool, isa, key, query, value, d_model, n_streams, &mut alone);
            assert_eq!(bits(&alone), bits(&out[last]));
        }
    }
}

#[test]
fn a_likeness_of_zero_gates_by_exactly_one_half() {
    for isa in Isa::available() {
        let gate = |key: f32| {
            let mut out = [0.0; 4];
            let (key, query) = ([key, 0.0, 0.0, 0.0], [1.0; 4]);
            ple_gate(&Pool::new(1), isa, &key, &query, &[1.0; 4], 4, 1, &mut out);
            out[0]
        };
        assert_eq!(gate(0.0), 0.5);
        assert_eq!(gate(-0.0), 0.5);
        // The smallest likeness of either sign counts as 1e-6.
        let near = 1.0 / (1.0 + (-1.0e-3_f32).exp());
        assert_near(&[gate(1.0e-20), gate(-1.0e-20)], &[near, 1.0 - near], 2.0e-7, 0.0);
        assert!(gate(f32::NAN).is_nan());
        assert_eq!(gate(f32::INFINITY), 1.0);
        assert_eq!(gate(f32::NEG_INFINITY), 0.0);
    }
}
