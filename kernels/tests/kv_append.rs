//! Does `cpu::kv_append` put each element where the layout says, rounded as the reference does?

mod common;

use common::Random;
use half::f16;
use strata_kernels::cpu::kv::{Heads, KvFormat, KvPage, PAGE_LEN};
use strata_kernels::cpu::kv_append;
use strata_kernels::isa::Isa;
use strata_kernels::reference;

/// Where the layout puts an element of a key and of a value, from the page's start.
fn places(heads: Heads, place: usize, kv_head: usize, element: usize) -> (usize, usize) {
    let (n, d) = (heads.n_kv_heads(), heads.head_dim());
    let key = ((kv_head * PAGE_LEN / 16 + place / 16) * d + element) * 16 + place % 16;
    let value = n * d * PAGE_LEN + (kv_head * PAGE_LEN + place) * d + element;
    (key, value)
}

#[test]
fn each_element_lies_where_the_layout_says() {
    const UNTOUCHED: u16 = 0x1234;
    for isa in Isa::available() {
        for (n_kv_heads, head_dim) in [(1, 16), (3, 64), (2, 80)] {
            let heads = Heads::new(n_kv_heads, n_kv_heads, head_dim).unwrap();
            for (start, n_rows) in [(0, 0), (0, 1), (15, 2), (63, 2), (64, 1), (10, 130)] {
                let mut random = Random(start as u64 + 1);
                let width = heads.kv_width();
                let keys = random.values(n_rows * width, 9.0);
                let values = random.values(n_rows * width, 9.0);
                let mut pages = vec![
                    KvPage::try_new(heads, KvFormat::F16).unwrap();
                    (start + n_rows).div_ceil(PAGE_LEN)
                ];
                for page in &mut pages {
                    assert_eq!(page.bits().len() * 2, heads.page_bytes(KvFormat::F16));
                    page.bits_mut().fill(UNTOUCHED);
                }
                kv_append(isa, heads, &mut pages, start, &keys, &values);
                let (mut expected_keys, mut expected_values) = (Vec::new(), Vec::new());
                reference::kv_append::kv_append(&mut expected_keys, &keys);
                reference::kv_append::kv_append(&mut expected_values, &values);
                for (index, (key, value)) in expected_keys.iter().zip(&expected_values).enumerate()
                {
                    let position = start + index / width;
                    let (kv_head, element) = (index % width / head_dim, index % head_dim);
                    let at = places(heads, position % PAGE_LEN, kv_head, element);
                    let page = pages[position / PAGE_LEN].bits();
                    assert_eq!((page[at.0], page[at.1]), (key.to_bits(), value.to_bits()));
                }
                let written = pages.iter().flat_map(|page| page.bits());
                let written = written.filter(|&&half| half != UNTOUCHED).count();
                assert_eq!(written, 2 * n_rows * width, "only the given rows are written");
            }
        }
    }
}

#[test]
fn rounding_is_to_nearest_even_and_what_is_not_finite_stays() {
    let heads = Heads::new(1, 1, 16).unwrap();
    let mut row = [0.0; 16];
    row[..10].copy_from_slice(&[
        1.0 + 1.0 / 2048.0,
        1.0 + 3.0 / 2048.0,
        65_519.9,
        65_520.0,
        -1.0e9,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        2.0_f32.powi(-25),
        1.5 * 2.0_f32.powi(-24),
    ]);
    for isa in Isa::available() {
        let mut pages = [KvPage::try_new(heads, KvFormat::F16).unwrap()];
        kv_append(isa, heads, &mut pages, 0, &row, &row);
        for (element, &x) in row.iter().enumerate() {
            let (key, value) = places(heads, 0, 0, element);
            let expected = f16::from_f32(x);
            for at in [key, value] {
                let half = f16::from_bits(pages[0].bits()[at]);
                assert!(half == expected || half.is_nan() && expected.is_nan(), "{element}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "rows of")]
fn rows_that_are_not_whole_are_refused() {
    let heads = Heads::new(1, 1, 16).unwrap();
    kv_append(
        Isa::PORTABLE,
        heads,
        &mut [KvPage::try_new(heads, KvFormat::F16).unwrap()],
        0,
        &[0.0; 17],
        &[0.0; 17],
    );
}
