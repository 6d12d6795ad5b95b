//! How fast products are, on one thread, at the shapes of a small model (SmolLM2-135M).
//!
//! `cargo bench -p strata-kernels --bench matmul [-- FORMAT...]`. One row of activations is limited
//! by memory, so gigabytes of weights per second are printed; 512 rows by arithmetic, so operations
//! are. Medians of several runs; matrices change from run to run so that the cache does not hold
//! them.

#![expect(clippy::print_stdout, reason = "its output")]

use std::time::{Duration, Instant};

use strata_kernels::cpu::{self, Activations, Precision};
use strata_kernels::format::BlockFormat;
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;
use strata_kernels::tensor::WeightView;

/// Inputs and outputs of the layers.
const SHAPES: [(usize, usize); 5] =
    [(576, 576), (576, 192), (576, 1536), (1536, 576), (576, 49_152)];

/// Bytes of weights to walk through between two uses of one matrix.
const COLD_BYTES: usize = 128 << 20;

fn main() {
    let names: Vec<String> =
        std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let wanted = |format: &BlockFormat| match names.as_slice() {
        [] => matches!(format, BlockFormat::Q8_0 | BlockFormat::Q4_1),
        names => names.iter().any(|name| name == format.name()),
    };
    let pool = Pool::new(1);
    for format in BlockFormat::ALL.into_iter().filter(wanted) {
        for isa in Isa::available().into_iter().rev().take(2) {
            for (n_in, n_out) in SHAPES {
                shape(&pool, isa, format, n_in, n_out);
            }
        }
    }
}

fn shape(pool: &Pool, isa: Isa, format: BlockFormat, n_in: usize, n_out: usize) {
    // K formats need whole blocks of 256.
    let n_in = n_in.next_multiple_of(format.block_len());
    let n_bytes = format.row_bytes(n_in).expect("whole blocks") * n_out;
    // Not zeros: untouched memory would all be one page.
    let bytes = vec![0x11u8; n_bytes * (COLD_BYTES / n_bytes).max(1)];
    let (mut best, mut times) = (Vec::new(), Vec::new());
    for (n_tokens, n_runs) in [(1, 400), (4, 100), (512, 5)] {
        let x: Vec<f32> = (0..n_tokens * n_in).map(|i| (i % 17) as f32 - 8.0).collect();
        let mut y = vec![0.0; n_tokens * n_out];
        let mut activations = Activations::new();
        let mut runs: Vec<Duration> = bytes
            .chunks_exact(n_bytes)
            .cycle()
            .take(n_runs)
            .map(|bytes| {
                let w = WeightView::new(format, n_out, n_in, bytes).expect("sized for it");
                activations.load(pool, &x, n_tokens, n_in);
                let start = Instant::now();
                cpu::matmul(pool, isa, Precision::Int8, &w, &mut activations, &mut y);
                start.elapsed()
            })
            .collect();
        runs.sort_unstable();
        best.push(runs[0].as_secs_f64());
        times.push(runs[runs.len() / 2].as_secs_f64());
    }
    let operations = 2.0 * (n_in * n_out) as f64;
    let rates = |times: &[f64]| {
        let gigabytes = |time: f64| n_bytes as f64 / time / 1e9;
        let operations = 512.0 * operations / times[2] / 1e9;
        format!(
            "{:5.1} {:5.1} GB/s {operations:4.0} GOPS",
            gigabytes(times[0]),
            gigabytes(times[1])
        )
    };
    println!(
        "{:5} {:8} {n_in:5} x {n_out:5}  1, 4, 512 rows: median {}, best {}",
        format.name(),
        isa.name(),
        rates(&times),
        rates(&best),
    );
}
