//! Do rows go to the experts they should, and come back as from each expert's own matrix?

mod common;

use common::{Random, bits};
use strata_kernels::cpu::{
    Activations, Precision, Routing, expert_matmul, matmul, moe_combine, route,
};
use strata_kernels::format::BlockFormat;
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference;
use strata_kernels::tensor::ExpertsView;

/// A sum of five products, each rounded once.
const TOLERANCE: f32 = 1.0e-6;

#[test]
fn the_best_experts_are_chosen_and_the_lower_of_equals() {
    let mut routing = Routing::default();
    route(&[1.0, 3.0, 3.0, 2.0, 0.0, 0.0, 0.0, 0.0], 4, 2, &mut routing);
    assert_eq!(routing.experts(), [1, 2, 0, 1]);
    assert_eq!(routing.weights(), [0.5; 4]);
    let groups: Vec<_> = routing.groups().map(|(e, pairs)| (e, pairs.to_vec())).collect();
    assert_eq!(groups, [(0, vec![2]), (1, vec![0, 3]), (2, vec![1])]);
    // softmax(ln 3, ln 1) of the best two of three.
    route(&[3_f32.ln(), -9.0, 0.0], 3, 2, &mut routing);
    assert_eq!(routing.experts(), [0, 2]);
    assert!((routing.weights()[0] - 0.75).abs() < 1e-6);
}

#[test]
fn a_bad_logit_shows_in_its_row_only() {
    let mut routing = Routing::default();
    route(&[0.0, f32::NAN, 1.0, 0.0, 1.0, 2.0], 3, 2, &mut routing);
    assert!(routing.weights()[..2].iter().all(|weight| weight.is_nan()));
    assert!(routing.weights()[2..].iter().all(|weight| weight.is_finite()));
}

#[test]
fn products_are_those_of_each_expert_alone() {
    let (n_experts, n_used, n_in, n_out) = (6, 2, 64, 35);
    let mut random = Random(5);
    let weights: Vec<u8> =
        random.values(n_experts * n_in * n_out, 1.0).iter().flat_map(|w| w.to_le_bytes()).collect();
    let view = ExpertsView::new(BlockFormat::F32, n_experts, n_out, n_in, &weights).unwrap();
    let pool = Pool::new(2);
    for n in [1, 3, 20] {
        let mut routing = Routing::default();
        route(&random.values(n * n_experts, 3.0), n_experts, n_used, &mut routing);
        for rows_of_x in [n, n * n_used] {
            let x = random.values(rows_of_x * n_in, 1.0);
            let mut rows = Activations::default();
            rows.load(&pool, &x, rows_of_x, n_in);
            let mut y = vec![f32::NAN; n * n_used * n_out];
            let isa = Isa::detect();
            expert_matmul(&pool, isa, Precision::F32, &view, &routing, &rows, &mut y);
            for (pair, y) in y.chunks_exact(n_out).enumerate() {
                let row = if rows_of_x == n { pair / n_used } else { pair };
                let mut one = Activations::default();
                one.load(&pool, &x[row * n_in..][..n_in], 1, n_in);
                let mut alone = vec![0.0; n_out];
                let expert = view.expert(routing.experts()[pair] as usize);
                matmul(&pool, isa, Precision::F32, &expert, &mut one, &mut alone);
                assert_eq!(bits(y), bits(&alone));
            }
        }
    }
}

#[test]
fn the_sum_is_that_of_the_reference() {
    let (n, n_experts, n_used, width) = (7, 9, 4, 37);
    let mut random = Random(6);
    let mut routing = Routing::default();
    route(&random.values(n * n_experts, 3.0), n_experts, n_used, &mut routing);
    let experts = random.values(n * n_used * width, 1.0);
    let (shared, gate) = (random.values(n * width, 1.0), random.values(n, 4.0));
    let mut expected = vec![0.0; n * width];
    reference::moe::moe_combine(&routing, &experts, &shared, &gate, &mut expected);
    let mut first: Option<Vec<u32>> = None;
    for isa in Isa::available() {
        let mut y = vec![f32::NAN; n * width];
        moe_combine(&Pool::new(2), isa, &routing, &experts, &shared, &gate, &mut y);
        for (y, expected) in y.iter().zip(&expected) {
            assert!((y - expected).abs() <= TOLERANCE, "{y}, not {expected}");
        }
        assert_eq!(*first.get_or_insert_with(|| bits(&y)), bits(&y), "{}", isa.name());
    }
}
