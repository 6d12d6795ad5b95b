//! Is the delta rule its reference, in either form, and do cuts change no bit?

mod common;

use common::{Random, bits};
use strata_kernels::cpu::{DeltaForm, DeltaInputs, DeltaShape, KeyHeads, delta_rule};
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference;

/// Of the largest output.
const TOLERANCE: f32 = 1.0e-5;

struct Case {
    shape: DeltaShape,
    n: usize,
    qkv: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
    a: Vec<f32>,
    dt: Vec<f32>,
}

impl Case {
    fn new(n: usize, key_heads: KeyHeads) -> Self {
        let shape = DeltaShape::new(2, 6, 32, key_heads).unwrap();
        let mut random = Random(n as u64 + 1);
        let mut qkv = random.values(n * shape.qkv_width(), 1.0);
        // A key and a query of zeros.
        qkv[..4 * 32].fill(0.0);
        // From no decay at all to all of it at once, and gates fully open and shut.
        let alpha = random.values(n * 6, 40.0);
        let beta = random.values(n * 6, 60.0);
        let a = vec![-1e-4, -0.05, -0.5, -2.0, -16.0, -1e-8];
        let dt = random.values(6, 4.0);
        Self { shape, n, qkv, alpha, beta, a, dt }
    }

    fn inputs(&self, rows: std::ops::Range<usize>) -> DeltaInputs<'_> {
        let width = self.shape.qkv_width();
        DeltaInputs {
            qkv: &self.qkv[rows.start * width..rows.end * width],
            alpha: &self.alpha[rows.start * 6..rows.end * 6],
            beta: &self.beta[rows.start * 6..rows.end * 6],
            a: &self.a,
            dt: &self.dt,
        }
    }

    fn run(&self, isa: Isa, cut: usize, is_grid: bool) -> Vec<f32> {
        let mut state = vec![0.0; self.shape.state_len()];
        let width = self.shape.value_width();
        let mut out = vec![f32::NAN; self.n * width];
        let mut start = 0;
        while start < self.n {
            let end = (start + cut).min(self.n);
            let form = if is_grid { DeltaForm::Grid { start } } else { DeltaForm::Recurrent };
            let inputs = self.inputs(start..end);
            let out = &mut out[start * width..end * width];
            delta_rule(&Pool::new(2), isa, self.shape, &inputs, form, &mut state, out);
            start = end;
        }
        out.extend(state);
        out
    }
}

#[test]
fn both_forms_are_the_reference_over_4096_steps_with_extreme_gates() {
    for key_heads in [KeyHeads::Tiled, KeyHeads::Grouped] {
        let case = Case::new(4096, key_heads);
        let mut state = vec![0.0; case.shape.state_len()];
        let mut expected = vec![0.0; case.n * case.shape.value_width()];
        let inputs = case.inputs(0..case.n);
        reference::delta_rule::delta_rule(case.shape, &inputs, &mut state, &mut expected);
        expected.extend(state);
        let most = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        for is_grid in [false, true] {
            let out = case.run(Isa::detect(), case.n, is_grid);
            for (y, expected) in out.iter().zip(&expected) {
                let error = (y - expected).abs();
                assert!(error <= TOLERANCE * most, "grid {is_grid}: {y}, not {expected}");
            }
        }
    }
}

#[test]
fn cuts_and_levels_change_no_bit() {
    let case = Case::new(300, KeyHeads::Tiled);
    let recurrent = bits(&case.run(Isa::detect(), case.n, false));
    let grid = bits(&case.run(Isa::detect(), case.n, true));
    for isa in Isa::available() {
        for cut in [1, 7, 64] {
            assert_eq!(bits(&case.run(isa, cut, false)), recurrent, "{} {cut}", isa.name());
        }
        for cut in [64, 128] {
            assert_eq!(bits(&case.run(isa, cut, true)), grid, "{} {cut}", isa.name());
        }
    }
}
