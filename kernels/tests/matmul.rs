//! Is every way of multiplying its reference, at every level, and are bits stable?

#![expect(clippy::unwrap_used, reason = "tests")]

use strata_kernels::cpu::{self, Activations, Precision};
use strata_kernels::format::BlockFormat;
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::reference;
use strata_kernels::tensor::WeightView;

/// Batches around every tile edge.
const TOKENS: [usize; 9] = [1, 2, 3, 4, 7, 8, 9, 17, 33];
/// Weight rows around the panel's edge.
const ROWS: [usize; 6] = [1, 15, 16, 17, 33, 64];

/// A small generator of even quality (splitmix64); tests must not depend on a library's stream.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Between -1 and 1.
    fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

/// Bytes of the f16 fields of a block, where arbitrary bits would be an infinity.
fn half_fields(format: BlockFormat) -> &'static [usize] {
    match format {
        BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => &[0, 2],
        BlockFormat::Q2K => &[80, 82],
        BlockFormat::Q3K => &[108],
        BlockFormat::Q6K => &[208],
        BlockFormat::Tq1_0 => &[52],
        BlockFormat::Tq2_0 => &[64],
        BlockFormat::Iq1M => &[48],
        BlockFormat::F32 | BlockFormat::F16 | BlockFormat::Bf16 => &[],
        BlockFormat::Mxfp4 | BlockFormat::Nvfp4 => &[],
        _ => &[0],
    }
}

/// Writes the f16 field at `at`, which IQ1_M scatters over the upper halves of four words.
fn put_half(format: BlockFormat, block: &mut [u8], at: usize, value: half::f16) {
    let bits = value.to_bits();
    if format == BlockFormat::Iq1M {
        for (part, word) in block[at..].chunks_exact_mut(2).enumerate() {
            word[1] = word[1] & 0x0f | (bits >> (4 * part)).to_le_bytes()[0] << 4;
        }
    } else {
        block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
}

/// Weights of any bits in their codes and scales between -1/8 and 1/8.
fn random_weights(random: &mut Random, format: BlockFormat, rows: usize, cols: usize) -> Vec<u8> {
    if !format.is_quantized() {
        let element = |random: &mut Random| match format {
            BlockFormat::F32 => random.signed().to_le_bytes().to_vec(),
            BlockFormat::F16 => half::f16::from_f32(random.signed()).to_le_bytes().to_vec(),
            _ => half::bf16::from_f32(random.signed()).to_le_bytes().to_vec(),
        };
        return (0..rows * cols).flat_map(|_| element(random)).collect();
    }
    let n_bytes = format.row_bytes(cols).unwrap() * rows;
    let mut bytes: Vec<u8> = (0..n_bytes).map(|_| random.next().to_le_bytes()[3]).collect();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for &at in half_fields(format) {
            put_half(format, block, at, half::f16::from_f32(random.signed() / 8.0));
        }
        if format == BlockFormat::Mxfp4 {
            block[0] = 120 + block[0] % 8;
        }
    }
    bytes
}

fn random_rows(random: &mut Random, n: usize) -> Vec<f32> {
    // Magnitudes differ by unit, as they do in a model.
    (0..n).map(|i| random.signed() * [1.0, 0.01, 8.0][i / 40 % 3]).collect()
}

/// Widths for a format: one block, several, and where it can be, no multiple of 64 or of 16.
fn widths(format: BlockFormat) -> &'static [usize] {
    match format.block_len() {
        1 => &[1, 15, 16, 17, 100, 576],
        32 => &[32, 96, 576],
        64 => &[64, 192, 576],
        _ => &[256, 768],
    }
}

/// What rounding may cost in one output.
///
/// Activations round to 1/254 of their unit's largest magnitude, so each product is off by at most
/// `|w| · amax / 254`; summing `n` floats in any order adds at most `n · 2^-23 · Σ|w·x|`, twice
/// over for the scales' products. Floating-point weights have the second part alone; where
/// activations are rounded to bf16, each product is off by 2^-8 of itself at most.
fn tolerance(w: &[f32], x: &[f32], isa: Isa, format: BlockFormat) -> f32 {
    let sum: f32 = w.iter().zip(x).map(|(w, x)| (w * x).abs()).sum();
    let mut bound = 2.0 * w.len() as f32 * f32::EPSILON * sum;
    if format == BlockFormat::Bf16 && isa.has_bf16() {
        bound += sum / 256.0;
    }
    if format.is_quantized() {
        for (w, x) in w.chunks(32).zip(x.chunks(32)) {
            let amax = x.iter().fold(0.0f32, |amax, x| amax.max(x.abs()));
            let weights: f32 = w.iter().map(|w| w.abs()).sum();
            // Half a code, and the roundings of scale and inverse; a minimum that cancels the
            // scaled code leaves more of them than the element shows, hence the factor on ε.
            bound += weights * amax * (0.5 / 127.0 + 1e-5) + 32.0 * amax * 1e-4;
        }
    }
    bound
}

fn multiply(pool: &Pool, isa: Isa, w: &WeightView<'_>, x: &[f32], n_tokens: usize) -> Vec<f32> {
    let mut activations = Activations::new();
    activations.load(pool, x, n_tokens, w.cols());
    let mut y = vec![f32::NAN; n_tokens * w.rows()];
    cpu::matmul(pool, isa, Precision::Int8, w, &mut activations, &mut y);
    y
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_format_and_level_is_its_reference() {
    let pool = Pool::new(1);
    let mut random = Random(1);
    for format in BlockFormat::ALL {
        for &cols in widths(format) {
            for rows in ROWS {
                let bytes = random_weights(&mut random, format, rows, cols);
                let w = WeightView::new(format, rows, cols, &bytes).unwrap();
                let n_tokens = 9;
                let x = random_rows(&mut random, n_tokens * cols);
                let mut expected = vec![0.0; n_tokens * rows];
                reference::matmul::matmul(&w, &x, &mut expected);
                let mut row = vec![0.0; cols];
                for isa in Isa::available() {
                    let actual = multiply(&pool, isa, &w, &x, n_tokens);
                    for (at, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                        let (token, out) = (at / rows, at % rows);
                        reference::dequantize::dequantize_row(format, w.row(out), &mut row);
                        let x = &x[token * cols..][..cols];
                        let tolerance = tolerance(&row, x, isa, format);
                        let place = format!("{rows}x{cols} token {token} row {out}");
                        assert!(
                            (actual - expected).abs() <= tolerance,
                            "{} {} {place}: {actual} is not {expected} ± {tolerance}",
                            format.name(),
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_batch_at_every_level_with_any_threads() {
    let pools = [1, 2, 3].map(Pool::new);
    let mut random = Random(2);
    for format in BlockFormat::ALL {
        let cols = if format.block_len() == 1 { 100 } else { format.block_len() * 3 };
        let rows = 49;
        let bytes = random_weights(&mut random, format, rows, cols);
        let w = WeightView::new(format, rows, cols, &bytes).unwrap();
        let n_tokens = TOKENS[TOKENS.len() - 1];
        let x = random_rows(&mut random, n_tokens * cols);
        for isa in Isa::available() {
            // The one format whose bits may differ between levels.
            let is_own = format == BlockFormat::Bf16 && isa.has_bf16();
            let level = if is_own { isa } else { Isa::PORTABLE };
            let alone: Vec<u32> = x
                .chunks_exact(cols)
                .flat_map(|x| bits(&multiply(&pools[0], level, &w, x, 1)))
                .collect();
            for n_tokens in TOKENS {
                for pool in &pools {
                    let y = multiply(pool, isa, &w, &x[..n_tokens * cols], n_tokens);
                    assert!(
                        bits(&y) == alone[..n_tokens * rows],
                        "{} {} {n_tokens} tokens, {} threads",
                        format.name(),
                        isa.name(),
                        pool.threads()
                    );
                }
            }
        }
    }
}

#[test]
fn a_nonfinite_activation_reaches_every_output_of_its_row_and_no_other() {
    let pool = Pool::new(2);
    let mut random = Random(3);
    for format in BlockFormat::ALL {
        let (rows, cols) = (17, if format.block_len() == 1 { 40 } else { 256 });
        let bytes = random_weights(&mut random, format, rows, cols);
        let w = WeightView::new(format, rows, cols, &bytes).unwrap();
        for n_tokens in [1, 2, 9] {
            for planted in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for column in [0, cols / 2, cols - 1] {
                    let mut x = random_rows(&mut random, n_tokens * cols);
                    let bad = n_tokens - 1;
                    x[bad * cols + column] = planted;
                    for isa in Isa::available() {
                        let y = multiply(&pool, isa, &w, &x, n_tokens);
                        for (token, y) in y.chunks_exact(rows).enumerate() {
                            assert!(
                                y.iter().all(|y| y.is_finite() == (token != bad)),
                                "{} {} {planted} at {column} of token {bad} of {n_tokens}: {token}",
                                format.name(),
                                isa.name()
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_nonfinite_scale_reaches_every_output_of_its_weight_row_and_no_other() {
    let pool = Pool::new(1);
    let mut random = Random(4);
    for format in BlockFormat::ALL.into_iter().filter(|format| format.is_quantized()) {
        let (rows, cols, bad) = (18, 512, 17);
        for &field in half_fields(format) {
            for planted in [half::f16::NAN, half::f16::INFINITY, half::f16::NEG_INFINITY] {
                let mut bytes = random_weights(&mut random, format, rows, cols);
                let at = (bad + 1) * format.row_bytes(cols).unwrap() - format.block_bytes() + field;
                put_half(format, &mut bytes[at - field..], field, planted);
                let w = WeightView::new(format, rows, cols, &bytes).unwrap();
                for n_tokens in [1, 3, 8] {
                    // Zeros too: infinity times zero is no number, not zero.
                    let mut x = random_rows(&mut random, n_tokens * cols);
                    x[..cols].fill(0.0);
                    for isa in Isa::available() {
                        let y = multiply(&pool, isa, &w, &x, n_tokens);
                        for (at, y) in y.iter().enumerate() {
                            assert_eq!(
                                y.is_finite(),
                                at % rows != bad,
                                "{} {} field {field} {planted}",
                                format.name(),
                                isa.name()
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn extremes_of_codes_and_activations_do_not_saturate() {
    // All code bytes at one extreme and all activations at ±amax: the largest integer sums there
    // are.
    let pool = Pool::new(1);
    for format in BlockFormat::ALL.into_iter().filter(|format| format.is_quantized()) {
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let (rows, cols) = (16, 512);
            let mut bytes = vec![byte; rows * format.row_bytes(cols).unwrap()];
            for block in bytes.chunks_exact_mut(format.block_bytes()) {
                for &at in half_fields(format) {
                    put_half(format, block, at, half::f16::ONE);
                }
                if format == BlockFormat::Mxfp4 {
                    block[0] = 127;
                }
            }
            let w = WeightView::new(format, rows, cols, &bytes).unwrap();
            for x in [1.0, -1.0] {
                let x = vec![x; 2 * cols];
                let mut expected = vec![0.0; 2 * rows];
                reference::matmul::matmul(&w, &x, &mut expected);
                for isa in Isa::available() {
                    let actual = multiply(&pool, isa, &w, &x, 2);
                    for (actual, expected) in actual.iter().zip(&expected) {
                        let tolerance = 1e-5 * expected.abs();
                        assert!(
                            (actual - expected).abs() <= tolerance,
                            "{} {} {byte:#x}: {actual} is not {expected}",
                            format.name(),
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn empty_shapes_are_allowed() {
    let pool = Pool::new(2);
    for isa in Isa::available() {
        for format in BlockFormat::ALL {
            let empty = WeightView::new(format, 0, 256, &[]).unwrap();
            assert!(multiply(&pool, isa, &empty, &[0.0; 512], 2).is_empty());
            let narrow = WeightView::new(format, 5, 0, &[]).unwrap();
            assert_eq!(multiply(&pool, isa, &narrow, &[], 2), [0.0; 10]);
        }
    }
}
