//! Is `cpu::hyper` its reference, and does a row depend on nothing but itself?

mod common;

use common::{Random, assert_near, bits, same_everywhere};
use strata_kernels::cpu::{hyper_add, hyper_expand, hyper_mix, hyper_silu};
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference::hyper as reference;

/// Relative: two exponentials within 1.5 steps of 6e-8 of the truth, and four roundings each.
const TOLERANCE: f32 = 7.0e-7;
/// Sums of a few products up to 9, whose roundings differ though the sum may cancel: seven half
/// steps of 9 and the sigmoids' own errors.
const TOLERANCE_OF_SUMS: f32 = 8.0e-6;

/// Streams, width of a stream, rows.
const SHAPES: [(usize, usize, usize); 6] =
    [(4, 128, 5), (4, 37, 3), (1, 16, 1), (2, 1, 4), (4, 2560, 9), (4, 16, 0)];

#[test]
fn streams_start_as_copies() {
    for (n_streams, d_model, n_rows) in SHAPES {
        let x = Random(1).values(n_rows * d_model, 1.0);
        let mut expected = vec![0.0; x.len() * n_streams];
        reference::hyper_expand(&x, d_model, n_streams, &mut expected);
        let out = same_everywhere(|pool, _| {
            let mut out = vec![f32::NAN; expected.len()];
            hyper_expand(pool, &x, d_model, n_streams, &mut out);
            out
        });
        assert_eq!(bits(&out), bits(&expected));
    }
}

#[test]
fn silu_divides_first() {
    for n in [0, 1, 16, 321, 320 * 300] {
        let x = Random(2).values(n, 90.0);
        let out = same_everywhere(|pool, isa| {
            let mut out = x.clone();
            hyper_silu(pool, isa, &mut out, 4);
            out
        });
        let mut expected = x.clone();
        reference::hyper_silu(&mut expected, 4);
        assert_near(&out, &expected, TOLERANCE, 0.0);
    }
    let mut x = [8.0];
    hyper_silu(&Pool::new(1), Isa::detect(), &mut x, 4);
    assert_near(&x, &[2.0 / (1.0 + (-2.0_f32).exp())], TOLERANCE, 0.0);
}

#[test]
fn mixes_are_those_of_the_reference() {
    for (n_streams, d_model, n_rows) in SHAPES {
        let mut random = Random(3);
        let wide = n_rows * n_streams * d_model;
        let (normed, gamma) = (random.values(wide, 9.0), random.values(wide, 20.0));
        let out = same_everywhere(|pool, isa| {
            let mut out = vec![f32::NAN; n_rows * d_model];
            hyper_mix(pool, isa, &normed, &gamma, d_model, n_streams, &mut out);
            out
        });
        let mut expected = vec![0.0; out.len()];
        reference::hyper_mix(&normed, &gamma, d_model, n_streams, &mut expected);
        assert_near(&out, &expected, 0.0, TOLERANCE_OF_SUMS);
        if n_rows > 0 {
            let last = wide - n_streams * d_model..;
            let (normed, gamma) = (&normed[last.clone()], &gamma[last]);
            let mut alone = vec![0.0; d_model];
            let (pool, isa) = (Pool::new(1), Isa::detect());
            hyper_mix(&pool, isa, normed, gamma, d_model, n_streams, &mut alone);
            assert_eq!(bits(&alone), bits(&out[out.len() - d_model..]));
        }
    }
}

#[test]
fn sums_are_those_of_the_reference() {
    for (n_streams, d_model, n_rows) in SHAPES {
        let mut random = Random(4);
        let residual = random.values(n_rows * n_streams * d_model, 9.0);
        let y = random.values(n_rows * d_model, 4.0);
        let inject = random.values(n_rows * n_streams, 30.0);
        let out = same_everywhere(|pool, isa| {
            let mut out = residual.clone();
            hyper_add(pool, isa, &mut out, &y, &inject, n_streams);
            out
        });
        let mut expected = residual.clone();
        reference::hyper_add(&mut expected, &y, &inject, n_streams);
        assert_near(&out, &expected, 0.0, TOLERANCE_OF_SUMS);
    }
}

#[test]
fn an_injection_of_zero_adds_the_output_as_it_is() {
    for isa in Isa::available() {
        let mut residual = [1.0, 2.0, 3.0, 4.0];
        hyper_add(&Pool::new(1), isa, &mut residual, &[0.5, -8.0], &[0.0, 0.0], 2);
        assert_eq!(residual, [1.5, -6.0, 3.5, -4.0]);
    }
}

#[test]
fn a_planted_value_shows_where_it_belongs_and_nowhere_else() {
    let (n_streams, d_model) = (4, 20);
    let wide = n_streams * d_model;
    for isa in Isa::available() {
        let pool = Pool::new(1);
        let (mut normed, gamma) = (vec![1.0; 2 * wide], vec![0.5; 2 * wide]);
        normed[wide + 2 * d_model + 17] = f32::NAN;
        let mut out = vec![0.0; 2 * d_model];
        hyper_mix(&pool, isa, &normed, &gamma, d_model, n_streams, &mut out);
        for (index, y) in out.iter().enumerate() {
            assert_eq!(y.is_nan(), index == d_model + 17);
        }
        let (mut residual, y) = (vec![1.0; 2 * wide], vec![1.0; 2 * d_model]);
        let mut inject = vec![0.0; 2 * n_streams];
        inject[5] = f32::NAN;
        hyper_add(&pool, isa, &mut residual, &y, &inject, n_streams);
        for (index, r) in residual.iter().enumerate() {
            assert_eq!(r.is_nan(), index / d_model == 5);
        }
    }
}
