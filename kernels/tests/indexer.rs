//! Does the indexer choose what the formula says, however the keys came in?

mod common;

use common::Random;
use strata_kernels::cpu::{
    IndexerKeys, IndexerShape, RopePairs, RopeTable, Selection, indexer_append, indexer_select,
};
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference;

const HEAD_DIM: usize = 32;
const N_ROT: usize = 16;
const N_HEADS: usize = 2;
const BLOCK: usize = 4;
const BUDGET: usize = 16;
const BASE: f64 = 10_000.0;
const EPS: f32 = 1e-6;

fn shape() -> IndexerShape {
    IndexerShape::new(N_HEADS, HEAD_DIM, BLOCK, BUDGET).unwrap()
}

fn append(keys: &mut IndexerKeys, raw: &[f32], norm: &[f32]) {
    let table = RopeTable::new(RopePairs::Halves, N_ROT, BASE, 1.0, None).unwrap();
    indexer_append(&Pool::new(1), Isa::detect(), keys, raw, norm, EPS, &table);
}

#[test]
fn the_best_blocks_are_chosen_whatever_the_cuts() {
    let n = 90;
    let mut random = Random(3);
    let (raw, norm) = (random.values(n * HEAD_DIM, 1.0), random.values(HEAD_DIM, 1.0));
    let queries = random.values(n * N_HEADS * HEAD_DIM, 1.0);
    let mut whole = IndexerKeys::new(shape());
    append(&mut whole, &raw, &norm);
    for cut in [1, 3, 64] {
        let mut keys = IndexerKeys::new(shape());
        raw.chunks(cut * HEAD_DIM).for_each(|raw| append(&mut keys, raw, &norm));
        assert_eq!(keys.blocks(), whole.blocks(), "cut {cut}");
    }
    let mut selection = Selection::default();
    for isa in Isa::available() {
        indexer_select(&Pool::new(2), isa, &whole, 0, &queries, &mut selection);
        for (row, query) in queries.chunks_exact(N_HEADS * HEAD_DIM).enumerate() {
            let visible = row + 1;
            let expected = reference::indexer::blocks(
                &raw[..visible * HEAD_DIM],
                &norm,
                EPS,
                (N_ROT, BASE),
                BLOCK,
                BUDGET / BLOCK,
                query,
            );
            match selection.blocks(row) {
                // Dense up to the first block too many, which may be the row's own.
                None => assert!(visible < BUDGET + BLOCK, "row {row}"),
                Some(blocks) => {
                    assert!(visible >= BUDGET + BLOCK, "row {row}");
                    assert_eq!(blocks, expected, "row {row}");
                }
            }
        }
    }
}

#[test]
fn of_equal_scores_the_lower_block_is_taken() {
    let n = 64;
    let mut keys = IndexerKeys::new(shape());
    append(&mut keys, &Random(1).values(n * HEAD_DIM, 1.0), &[1.0; HEAD_DIM]);
    let mut selection = Selection::default();
    let query = [0.0; N_HEADS * HEAD_DIM];
    indexer_select(&Pool::new(1), Isa::detect(), &keys, n - 1, &query, &mut selection);
    assert_eq!(selection.blocks(0), Some(&[0, 1, 2, 3][..]));
}

#[test]
fn what_was_taken_back_leaves_no_trace() {
    let n = 150;
    let mut random = Random(8);
    let raw = random.values(n * HEAD_DIM, 1.0);
    let other = random.values(40 * HEAD_DIM, 1.0);
    let norm = [1.0; HEAD_DIM];
    let mut expected = IndexerKeys::new(shape());
    append(&mut expected, &raw, &norm);
    for kept in [110, 111, 112, 149] {
        let mut keys = IndexerKeys::new(shape());
        append(&mut keys, &raw[..kept * HEAD_DIM], &norm);
        append(&mut keys, &other, &norm);
        assert!(keys.truncate(kept), "kept {kept}");
        append(&mut keys, &raw[kept * HEAD_DIM..], &norm);
        assert_eq!(keys.blocks(), expected.blocks(), "kept {kept}");
        assert_eq!(keys.len(), n);
    }
    let mut keys = expected.clone();
    assert!(keys.truncate(0) && keys.is_empty());
    assert!(!expected.truncate(2), "the raw keys of the first block are gone");
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for (n_heads, head_dim, block_len, budget) in
        [(0, 32, 4, 16), (1, 20, 4, 16), (1, 32, 0, 16), (1, 32, 4, 18), (1, 32, 4, 0)]
    {
        assert!(IndexerShape::new(n_heads, head_dim, block_len, budget).is_err());
    }
}
