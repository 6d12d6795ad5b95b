//! Is `cpu::attention` its reference, and does a row depend on nothing but itself?

mod common;

use common::{Random, bits};
use half::f16;
use strata_kernels::cpu::kv::{Heads, KvFormat, KvPage, PAGE_LEN};
use strata_kernels::cpu::{AttentionPart, attention, kv_append};
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference;

/// Outputs are weighted means of values of magnitude up to 4. A score is a sum of up to 256
/// products of up to 4 in magnitude, so two orders of summing part by some 1e-5 in the exponent.
const TOLERANCE: f32 = 1.0e-4;

/// Heads of small and odd shapes, with 16 to 256 elements.
const SHAPES: [(usize, usize, usize); 7] =
    [(9, 3, 64), (4, 4, 16), (8, 1, 80), (5, 1, 96), (2, 1, 128), (14, 2, 256), (1, 1, 48)];

/// A sequence with its queries.
struct Sequence {
    heads: Heads,
    q: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Sequence {
    fn new(heads: Heads, n: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        Self {
            heads,
            q: random.values(n * heads.q_width(), 4.0),
            keys: random.values(n * heads.kv_width(), 4.0),
            values: random.values(n * heads.kv_width(), 4.0),
        }
    }

    fn n(&self) -> usize {
        self.q.len() / self.heads.q_width()
    }

    /// Pages whose unused places hold NaN.
    fn pages(&self, isa: Isa) -> Vec<KvPage> {
        let mut pages =
            vec![KvPage::try_new(self.heads, KvFormat::F16).unwrap(); self.n().div_ceil(PAGE_LEN)];
        for page in &mut pages {
            page.bits_mut().fill(f16::NAN.to_bits());
        }
        kv_append(isa, self.heads, &mut pages, 0, &self.keys, &self.values);
        pages
    }

    fn scale(&self) -> f32 {
        1.0 / (self.heads.head_dim() as f32).sqrt() / 4.0
    }

    /// Rows `start..start + n_rows` computed together.
    fn attend(&self, pool: &Pool, isa: Isa, start: usize, n_rows: usize) -> Vec<f32> {
        let width = self.heads.q_width();
        let pages = self.pages(isa);
        let part = AttentionPart { pages: &pages, start, n_rows, selection: None };
        let q = &self.q[start * width..][..n_rows * width];
        let mut out = vec![f32::NAN; q.len()];
        attention(pool, isa, self.heads, self.scale(), q, &[part], &mut out);
        out
    }

    fn expected(&self, position: usize) -> Vec<f32> {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let n = (position + 1) * self.heads.kv_width();
        reference::kv_append::kv_append(&mut keys, &self.keys[..n]);
        reference::kv_append::kv_append(&mut values, &self.values[..n]);
        let width = self.heads.q_width();
        let mut out = vec![0.0; width];
        reference::attention::attention(
            self.heads.n_kv_heads(),
            self.heads.head_dim(),
            self.scale(),
            &self.q[position * width..][..width],
            &keys,
            &values,
            &mut out,
        );
        out
    }
}

#[test]
fn rows_are_those_of_the_reference() {
    let pool = Pool::new(2);
    for (n_heads, n_kv_heads, head_dim) in SHAPES {
        let heads = Heads::new(n_heads, n_kv_heads, head_dim).unwrap();
        for n in [1, 2, 15, 16, 17, 63, 64, 65, 131] {
            let sequence = Sequence::new(heads, n, 7 + n as u64);
            let out = sequence.attend(&pool, Isa::detect(), 0, n);
            for (position, out) in out.chunks_exact(heads.q_width()).enumerate() {
                if position % 13 != 0 && position + 3 < n {
                    continue;
                }
                for (x, expected) in out.iter().zip(sequence.expected(position)) {
                    let near = (x - expected).abs() <= TOLERANCE;
                    assert!(near, "{heads:?}, {position} of {n}: {x}, not {expected}");
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company_on_any_level() {
    let (one, three) = (Pool::new(1), Pool::new(3));
    for (n_heads, n_kv_heads, head_dim) in SHAPES {
        let heads = Heads::new(n_heads, n_kv_heads, head_dim).unwrap();
        let n = 150;
        let sequence = Sequence::new(heads, n, 99);
        let width = heads.q_width();
        let whole = bits(&sequence.attend(&one, Isa::detect(), 0, n));
        assert_eq!(bits(&sequence.attend(&three, Isa::detect(), 0, n)), whole);
        for isa in Isa::available() {
            for (start, n_rows) in [(0, 1), (0, 40), (3, 5), (60, 7), (63, 1), (64, 2), (128, 22)] {
                let part = sequence.attend(&three, isa, start, n_rows);
                let expected = &whole[start * width..][..n_rows * width];
                assert!(
                    bits(&part) == expected,
                    "{heads:?} on {}: {start}+{n_rows} differs from the whole",
                    isa.name()
                );
            }
        }
    }
}

#[test]
fn parts_of_several_sequences_do_not_touch() {
    let pool = Pool::new(2);
    let isa = Isa::detect();
    let heads = Heads::new(6, 2, 32).unwrap();
    let sequences = [70, 1, 130].map(|n| Sequence::new(heads, n, n as u64));
    let pages = sequences.each_ref().map(|sequence| sequence.pages(isa));
    let width = heads.q_width();
    let (mut q, mut parts, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for ((sequence, pages), n_rows) in sequences.iter().zip(&pages).zip([20, 1, 0]) {
        let start = sequence.n() - n_rows;
        parts.push(AttentionPart { pages, start, n_rows, selection: None });
        q.extend_from_slice(&sequence.q[start * width..]);
        expected.extend(sequence.attend(&pool, isa, start, n_rows));
    }
    let mut out = vec![0.0; q.len()];
    attention(&pool, isa, heads, sequences[0].scale(), &q, &parts, &mut out);
    assert_eq!(bits(&out), bits(&expected));
    attention(&pool, isa, heads, 1.0, &[], &[], &mut []);
}

#[test]
fn a_planted_value_shows_in_each_row_that_sees_it_and_in_no_other() {
    let pool = Pool::new(1);
    let heads = Heads::new(6, 2, 32).unwrap();
    let n = 100;
    let place = 70;
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for what in 0..3 {
                let mut sequence = Sequence::new(heads, n, 5);
                let healthy = bits(&sequence.attend(&pool, isa, 0, n));
                let width = heads.q_width();
                let (operand, at) = match what {
                    0 => (&mut sequence.q, place * width + 5),
                    1 => (&mut sequence.keys, place * heads.kv_width() + 5),
                    _ => (&mut sequence.values, place * heads.kv_width() + 5),
                };
                operand[at] = bad;
                let out = sequence.attend(&pool, isa, 0, n);
                for (position, row) in out.chunks_exact(width).enumerate() {
                    let seen = if what == 0 { position == place } else { position >= place };
                    let shows = row.iter().any(|x| !x.is_finite());
                    assert_eq!(shows, seen, "{bad} as {what}, row {position} on {}", isa.name());
                    if !seen {
                        assert_eq!(bits(row), healthy[position * width..][..width]);
                    }
                }
            }
        }
    }
}

#[test]
fn far_apart_scores_do_not_overflow() {
    let pool = Pool::new(1);
    let heads = Heads::new(1, 1, 16).unwrap();
    let mut sequence = Sequence::new(heads, 130, 3);
    for x in &mut sequence.q {
        *x *= 1.0e4;
    }
    let out = sequence.attend(&pool, Isa::detect(), 0, 130);
    assert!(out.iter().all(|x| x.abs() <= 4.01));
}

#[test]
fn heads_that_do_not_fit_are_refused() {
    for (n_heads, n_kv_heads, head_dim) in [(4, 3, 64), (0, 1, 64), (4, 0, 64), (4, 2, 40)] {
        Heads::new(n_heads, n_kv_heads, head_dim).unwrap_err();
    }
}
