//! Does `cpu::sample` keep, draw and report what its reference does?

mod common;

use common::Random;
use strata_kernels::cpu::sample::{
    Drawn, LOGPROB_MIN, NonFiniteLogit, SampleParams, SampleScratch, SeenTokens, philox, sample,
};
use strata_kernels::isa::Isa;
use strata_kernels::reference::sample as reference;

/// A log-probability is rounded once to f32 (1e-6 at 16), and the sum it is taken from carries the
/// f32 roundings of its lanes, some 1e-6.
const LOGPROB_TOLERANCE: f64 = 4.0e-6;

/// Many near-ties: sums of three uniform numbers times `spread`.
fn logits(random: &mut Random, n: usize, spread: f32) -> Vec<f32> {
    (0..n).map(|_| (random.centred() + random.centred() + random.centred()) * spread).collect()
}

fn draw_on(isa: Isa, logits: &[f32], params: &SampleParams, position: u32) -> Drawn {
    let mut scratch = SampleScratch::default();
    sample(isa, logits, params, SeenTokens::default(), position, &mut scratch).unwrap()
}

fn draw(logits: &[f32], params: &SampleParams, position: u32) -> u32 {
    draw_on(Isa::detect(), logits, params, position).token
}

/// Row lengths around a lane, a block of maxima, and a block of weights.
const LENGTHS: [usize; 12] = [1, 2, 15, 17, 63, 64, 65, 1023, 1024, 1025, 5000, 49_152];

#[test]
fn draws_are_those_of_the_reference() {
    let mut random = Random(11);
    let mut scratch = SampleScratch::default();
    let mut position = 0;
    for n in LENGTHS {
        for (top_k, top_p, min_p) in [
            (0, 1.0, 0.0),
            (1, 1.0, 0.0),
            (40, 1.0, 0.0),
            (2000, 0.7, 0.0),
            (0, 0.9, 0.0),
            (0, 0.999, 0.0),
            (0, 1.0e-9, 0.0),
            (0, 1.0, 0.05),
            (0, 1.0, 1.0),
            (64, 0.95, 0.02),
            (100_000, 0.5, 0.5),
        ] {
            for (spread, temperature) in [(0.01, 1.0), (4.0, 0.8), (30.0, 2.0), (10.0, 1.0e-6)] {
                let logits = logits(&mut random, n, spread);
                let params = SampleParams {
                    seed: 5,
                    choice: 1,
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    ..SampleParams::default()
                };
                let truncation = reference::Truncation { top_k, top_p, min_p };
                let kept = reference::kept(&logits, truncation);
                for _ in 0..3 {
                    position += 1;
                    let uniform = philox::uniform(5, 1, position);
                    let expected = reference::draw(&logits, &kept, temperature, uniform);
                    let seen = SeenTokens::default();
                    let isa = Isa::detect();
                    let drawn = sample(isa, &logits, &params, seen, position, &mut scratch);
                    let token = drawn.unwrap().token as usize;
                    assert_eq!(token, expected, "{n} logits times {spread}, {params:?}");
                }
            }
        }
    }
}

#[test]
fn the_best_token_is_the_lowest_of_equals_and_levels_agree() {
    let mut random = Random(2);
    for n in LENGTHS {
        let mut logits = logits(&mut random, n, 8.0);
        for x in &mut logits {
            *x = (*x * 4.0).round() / 4.0;
        }
        let expected = reference::best(&logits);
        for isa in Isa::available() {
            let drawn = draw_on(isa, &logits, &SampleParams::default(), 0);
            assert_eq!(drawn.token as usize, expected);
            let wide = SampleParams { temperature: 1.0, ..SampleParams::default() };
            assert_eq!(draw_on(isa, &logits, &wide, 3), draw_on(Isa::PORTABLE, &logits, &wide, 3));
        }
    }
    let ties = [0.0, -0.0, 1.0, 1.0, 1.0];
    assert_eq!(draw(&ties, &SampleParams::default(), 0), 2);
    let params = SampleParams { temperature: 1.0, top_k: 2, ..SampleParams::default() };
    let drawn: Vec<u32> = (0..64).map(|position| draw(&ties, &params, position)).collect();
    assert!(drawn.iter().all(|token| [2, 3].contains(token)), "{drawn:?}");
    assert!(drawn.contains(&2) && drawn.contains(&3));
}

#[test]
fn frequencies_follow_the_probabilities() {
    // Probabilities 1/2, 1/4, 1/8, 1/16, 1/16 among tokens that are never drawn.
    let mut logits = vec![-1.0e4; 3000];
    let share = [(7, 0.5_f64), (70, 0.25), (71, 0.125), (1500, 0.0625), (2999, 0.0625)];
    for (token, probability) in share {
        #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
        let logit = probability.ln() as f32;
        logits[token] = logit;
    }
    let params = SampleParams { seed: 1234, temperature: 1.0, ..SampleParams::default() };
    let n = 20_000;
    let mut counts = vec![0_u32; 3000];
    let mut scratch = SampleScratch::default();
    for position in 0..n {
        let seen = SeenTokens::default();
        let drawn = sample(Isa::detect(), &logits, &params, seen, position, &mut scratch);
        counts[drawn.unwrap().token as usize] += 1;
    }
    assert_eq!(share.iter().map(|&(token, _)| counts[token]).sum::<u32>(), n);
    let chi_square: f64 = share
        .iter()
        .map(|&(token, probability)| {
            let expected = probability * f64::from(n);
            (f64::from(counts[token]) - expected).powi(2) / expected
        })
        .sum();
    // 4 degrees of freedom: exceeded once in 10,000 seeds, and this seed is fixed.
    assert!(chi_square < 23.5, "{chi_square}: {share:?}");
}

#[test]
fn draws_depend_on_seed_choice_and_position_and_on_nothing_else() {
    let logits = logits(&mut Random(3), 1000, 1.0);
    let base = SampleParams { seed: 9, temperature: 1.0, ..SampleParams::default() };
    let run = |params: &SampleParams| -> Vec<u32> {
        (0..50).map(|position| draw(&logits, params, position)).collect()
    };
    assert_eq!(run(&base), run(&base));
    assert_ne!(run(&base), run(&SampleParams { seed: 10, ..base.clone() }));
    assert_ne!(run(&base), run(&SampleParams { choice: 1, ..base.clone() }));
    // A truncation that removes nothing changes nothing.
    let all = SampleParams { top_k: 1000, min_p: 1.0e-30, ..base.clone() };
    assert_eq!(run(&base), run(&all));
}

#[test]
fn nothing_is_sampled_from_a_row_that_is_not_finite() {
    let mut scratch = SampleScratch::default();
    for n in [1, 64, 100, 4096] {
        for place in [0, n / 2, n - 1] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut logits = logits(&mut Random(4), n, 3.0);
                logits[place] = bad;
                for isa in Isa::available() {
                    let params = SampleParams { temperature: 0.5, ..SampleParams::default() };
                    let seen = SeenTokens::default();
                    let NonFiniteLogit { index, value } =
                        sample(isa, &logits, &params, seen, 0, &mut scratch).unwrap_err();
                    assert_eq!((index, value.to_bits()), (place, bad.to_bits()));
                }
            }
        }
    }
}

#[test]
fn logprobs_are_those_of_the_row_after_the_bias() {
    let mut logits = logits(&mut Random(6), 3000, 20.0);
    logits[10] = -3.0e38;
    logits[20] = logits[21];
    let params = SampleParams {
        temperature: 0.7,
        logit_bias: vec![(5, 20.0), (6, -5.0), (5, 1.0), (1 << 30, 1.0)],
        repeat_penalty: 1.5,
        n_logprobs: Some(20),
        ..SampleParams::default()
    };
    let mut biased = logits.clone();
    biased[5] += 20.0;
    biased[5] += 1.0;
    biased[6] -= 5.0;
    let expected = reference::log_softmax(&biased);
    let mut order: Vec<usize> = (0..3000).collect();
    order.sort_by(|&a, &b| biased[b].partial_cmp(&biased[a]).unwrap().then(a.cmp(&b)));
    let seen = SeenTokens { recent: &[5, 7, 5], emitted: &[] };
    for position in 0..20 {
        let mut scratch = SampleScratch::default();
        let drawn = sample(Isa::detect(), &logits, &params, seen, position, &mut scratch).unwrap();
        let logprobs = drawn.logprobs.unwrap();
        let near = |x: f32, id: usize| (f64::from(x) - expected[id]).abs() < LOGPROB_TOLERANCE;
        assert!(near(logprobs.chosen, drawn.token as usize));
        let ids: Vec<usize> = logprobs.top.iter().map(|&(id, _)| id as usize).collect();
        assert_eq!(ids, order[..20]);
        assert!(logprobs.top.iter().all(|&(id, x)| near(x, id as usize) && x <= 0.0));
    }
    let unlikely = SampleParams {
        logit_bias: (0..3000).filter(|&id| id != 10).map(|id| (id, -3.4e38)).collect(),
        n_logprobs: Some(3000),
        ..SampleParams::default()
    };
    let top = draw_on(Isa::detect(), &logits, &unlikely, 0).logprobs.unwrap().top;
    assert_eq!(top[0], (10, 0.0));
    assert!(top[1..].iter().all(|&(_, x)| x == LOGPROB_MIN));
    let none = SampleParams { n_logprobs: Some(0), ..SampleParams::default() };
    assert_eq!(draw_on(Isa::detect(), &logits, &none, 0).logprobs.unwrap().top, []);
}

#[test]
fn penalties_and_bias_change_the_best_token() {
    let logits = [2.0, 1.9, -1.0, -1.1, 0.5];
    let token = |params: SampleParams, recent: &[u32], emitted: &[u32]| {
        let mut scratch = SampleScratch::default();
        let seen = SeenTokens { recent, emitted };
        sample(Isa::detect(), &logits, &params, seen, 0, &mut scratch).unwrap().token
    };
    let off = SampleParams::default();
    assert_eq!(token(off.clone(), &[0, 0], &[0]), 0);
    // Once for each token, however often it was seen: 2.0 / 1.1 < 1.9.
    assert_eq!(token(SampleParams { repeat_penalty: 1.1, ..off.clone() }, &[0, 0, 99], &[]), 1);
    assert_eq!(token(SampleParams { repeat_penalty: 1.01, ..off.clone() }, &[0; 50], &[]), 0);
    // By count: 2.0 - 3 * 0.04 < 1.9.
    assert_eq!(token(SampleParams { frequency_penalty: 0.04, ..off.clone() }, &[], &[0]), 0);
    assert_eq!(token(SampleParams { frequency_penalty: 0.04, ..off.clone() }, &[], &[0; 3]), 1);
    assert_eq!(token(SampleParams { presence_penalty: 0.09, ..off.clone() }, &[], &[0; 9]), 0);
    assert_eq!(token(SampleParams { presence_penalty: 0.2, ..off.clone() }, &[], &[0]), 1);
    assert_eq!(token(SampleParams { logit_bias: vec![(3, 100.0)], ..off.clone() }, &[], &[]), 3);
    // Far out of range, and still an answer.
    let wild = SampleParams {
        repeat_penalty: 1.0e-38,
        frequency_penalty: f32::MAX,
        presence_penalty: -f32::MAX,
        logit_bias: vec![(0, f32::MAX), (0, f32::MAX)],
        temperature: 1.0e-38,
        ..off
    };
    assert_eq!(token(wild, &[0, 1], &[1, 2, 1]), 0);
}
