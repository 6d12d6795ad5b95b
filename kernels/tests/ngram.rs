//! Are the rows those that the formula gives, with its rules about ends of texts and 64 bits?

#![expect(clippy::unwrap_used, reason = "tests")]

use strata_kernels::cpu::{NgramError, NgramShape, ngram_rows};

const EOS: u32 = 248_044;
/// Those of the released model; `mu * token` needs up to 63 bits.
const MULTIPLIERS: [u64; 3] = [23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071];
const SIZES: [u64; 4] = [20_000_003, 20_000_023, 20_000_033, 20_000_047];
const OFFSETS: [u64; 4] = [0, 20_000_003, 40_000_026, 60_000_059];
const N_TABLE_ROWS: u64 = 80_000_128;

fn shape() -> NgramShape {
    NgramShape::new(3, 2, EOS, &MULTIPLIERS, &OFFSETS, &SIZES, N_TABLE_ROWS).unwrap()
}

fn rows(history: [u32; 2], tokens: &[u32]) -> Vec<u64> {
    let mut out = vec![1, 2, 3];
    ngram_rows(&shape(), &history, tokens, &mut out);
    assert!(out.iter().all(|&row| row < N_TABLE_ROWS));
    out
}

/// The rows of one token, from its two predecessors as the hash sees them, in 128 bits.
fn expected(token: u32, one: u32, two: u32) -> [u64; 4] {
    let product = |token: u32, place: usize| {
        let product = u128::from(token) * u128::from(MULTIPLIERS[place]);
        u64::try_from(product).expect("below 2^64")
    };
    let pair = product(token, 0) ^ product(one, 1);
    let triple = pair ^ product(two, 2);
    let row = |hash: u64, head: usize| hash % SIZES[head] + OFFSETS[head];
    [row(pair, 0), row(pair, 1), row(triple, 2), row(triple, 3)]
}

#[test]
fn rows_come_from_64_bit_products_of_the_last_tokens() {
    let tokens = [248_319, 248_318, 1, 0, 77];
    let expected: Vec<u64> = [
        expected(248_319, 9, 5),
        expected(248_318, 248_319, 9),
        expected(1, 248_318, 248_319),
        expected(0, 1, 248_318),
        expected(77, 0, 1),
    ]
    .concat();
    assert_eq!(rows([5, 9], &tokens), expected);
    // 248319 · 23703573157769 needs 63 bits, and is alone in the hash of zeros.
    assert_eq!(rows([0, 0], &[248_319])[0], 5_886_047_582_964_040_311 % SIZES[0]);
}

#[test]
fn an_end_of_text_hides_what_is_before_it_but_not_from_itself() {
    // EOS at 2: itself sees its own predecessors.
    let tokens = [10, 11, EOS, 12, 13, 14];
    let rows = rows([EOS, EOS], &tokens);
    let expected: Vec<u64> = [
        expected(10, EOS, EOS),
        expected(11, 10, EOS),
        expected(EOS, 11, 10),
        expected(12, EOS, EOS),
        expected(13, 12, EOS),
        expected(14, 13, 12),
    ]
    .concat();
    assert_eq!(rows, expected);
}

#[test]
fn an_end_of_text_just_before_cuts_although_the_one_before_that_is_there() {
    assert_eq!(rows([42, EOS], &[7]), expected(7, EOS, EOS));
    assert_eq!(rows([EOS, 42], &[7]), expected(7, 42, EOS));
}

#[test]
fn cuts_between_calls_change_nothing() {
    let tokens: Vec<u32> =
        (0..40).map(|index| if index % 7 == 3 { EOS } else { index * 6101 }).collect();
    let whole = rows([EOS, EOS], &tokens);
    let mut history = [EOS, EOS];
    let mut parts = Vec::new();
    for part in tokens.chunks(3) {
        parts.extend(rows(history, part));
        for &token in part {
            history = [history[1], token];
        }
    }
    assert_eq!(parts, whole);
}

#[test]
fn constants_that_lead_out_of_the_table_are_refused() {
    let new = |order, heads, multipliers: &[u64], offsets: &[u64], sizes: &[u64], n| {
        NgramShape::new(order, heads, EOS, multipliers, offsets, sizes, n)
    };
    assert_eq!(shape().n_heads(), 4);
    assert_eq!(shape().order(), 3);
    assert_eq!(new(1, 2, &[1], &[], &[], 9), Err(NgramError::Order(1)));
    assert_eq!(new(2, 0, &[1, 1], &[], &[], 9), Err(NgramError::Heads(0)));
    let too_many = usize::MAX;
    assert_eq!(new(3, too_many, &[1; 3], &[], &[], 9), Err(NgramError::Heads(too_many)));
    let count = |what, expected, actual| Err(NgramError::Count { what, expected, actual });
    assert_eq!(new(2, 1, &[1], &[0], &[5], 9), count("multipliers", 2, 1));
    assert_eq!(new(2, 1, &[1; 2], &[0, 1], &[5], 9), count("offsets", 1, 2));
    assert_eq!(new(2, 1, &[1; 2], &[0], &[], 9), count("sizes", 1, 0));
    new(2, 1, &[1; 2], &[4], &[5], 9).unwrap();
    for (offset, size) in [(5, 5), (u64::MAX, 1), (0, 0)] {
        let error = new(2, 1, &[1; 2], &[offset], &[size], 9).unwrap_err();
        assert_eq!(error, NgramError::Rows { head: 0, offset, size, n_table_rows: 9 });
    }
}
