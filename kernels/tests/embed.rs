//! Is a dequantized row what two other implementations say it is?

#![expect(clippy::unwrap_used, reason = "tests")]

use strata_kernels::cpu;
use strata_kernels::format::BlockFormat;
use strata_kernels::tensor::WeightView;

/// Known answers; `fixtures/README.md` says whence and how they are laid out.
const KNOWN: &[u8] = include_bytes!("fixtures/block-formats.bin");

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (head, tail) = bytes.split_at(n);
    *bytes = tail;
    head
}

fn take_u32(bytes: &mut &[u8]) -> u32 {
    u32::from_le_bytes(take(bytes, 4).try_into().unwrap())
}

#[test]
fn every_format_reads_as_known_bit_by_bit() {
    let mut known = KNOWN;
    let mut formats = Vec::new();
    while !known.is_empty() {
        let format = BlockFormat::from_ggml_type(take_u32(&mut known)).unwrap();
        let rows = take_u32(&mut known) as usize;
        let cols = take_u32(&mut known) as usize;
        let n_bytes = take_u32(&mut known) as usize;
        let w = WeightView::new(format, rows, cols, take(&mut known, n_bytes)).unwrap();
        let expected: Vec<u32> = (0..rows * cols).map(|_| take_u32(&mut known)).collect();
        let tokens: Vec<u32> = (0..u32::try_from(rows).unwrap()).collect();
        let mut actual = vec![0.0; rows * cols];
        cpu::embed(&w, &tokens, &mut actual);
        let actual: Vec<u32> = actual.iter().map(|value| value.to_bits()).collect();
        assert!(actual == expected, "{}", format.name());
        formats.push(format);
    }
    assert_eq!(formats.len(), BlockFormat::ALL.len() - 1, "all but F32");
}

#[test]
fn tokens_pick_their_rows_in_order() {
    let table = [1.0f32, 2.0, 3.0, f32::NAN, 5.0, f32::NEG_INFINITY];
    let bytes: Vec<u8> = table.iter().flat_map(|value| value.to_le_bytes()).collect();
    let w = WeightView::new(BlockFormat::F32, 3, 2, &bytes).unwrap();
    let mut out = [0.0; 8];
    cpu::embed(&w, &[2, 0, 1, 2], &mut out);
    assert_eq!(out[..5], [5.0, f32::NEG_INFINITY, 1.0, 2.0, 3.0]);
    assert!(out[5].is_nan());
    cpu::embed(&w, &[], &mut []);
}

#[test]
fn scattered_rows_are_those_of_the_reference() {
    let (n_rows, width) = (300_u16, 160);
    let bytes: Vec<u8> = (0..n_rows * width)
        .flat_map(|value| half::f16::from_f32(f32::from(value % 1999) / 8.0).to_le_bytes())
        .collect();
    let (n_rows, width) = (usize::from(n_rows), usize::from(width));
    let w = WeightView::new(BlockFormat::F16, n_rows, width, &bytes).unwrap();
    for n in [0, 1, 16, 17, 48] {
        let rows: Vec<u64> = (0..n).map(|index| (index * 7919 + 299) % n_rows as u64).collect();
        let (mut actual, mut expected) =
            (vec![0.0; rows.len() * width], vec![1.0; rows.len() * width]);
        cpu::embed_rows(&w, &rows, &mut actual);
        strata_kernels::reference::embed::embed_rows(&w, &rows, &mut expected);
        assert_eq!(actual, expected);
    }
}

#[test]
#[should_panic(expected = "row 18446744073709551615 of 1")]
fn a_row_outside_the_table_is_refused() {
    let w = WeightView::new(BlockFormat::F32, 1, 1, &[0; 4]).unwrap();
    cpu::embed_rows(&w, &[u64::MAX], &mut [0.0]);
}
