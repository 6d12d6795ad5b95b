//! Times attention and the ops around it, on one thread: `cargo bench -p strata-kernels --bench
//! attention`. Prints the best of several runs per shape and level.

#![expect(clippy::print_stdout, reason = "its output is the point")]

use std::time::{Duration, Instant};

use strata_kernels::cpu::kv::{Heads, KvFormat, KvPage, PAGE_LEN};
use strata_kernels::cpu::sample::{SampleParams, SampleScratch, SeenTokens, sample};
use strata_kernels::cpu::{
    AttentionPart, RopeAngles, RopePairs, RopeTable, attention, kv_append, rms_norm, rope, swiglu,
};
use strata_kernels::isa::Isa;
use strata_kernels::pool::Pool;

const N_LAYERS: usize = 30;
const N_TOKENS: usize = 512;
const RUNS: usize = 7;

/// The best time of each layer's place in the passes, summed: other programs disturb one layer, not
/// all.
fn best_of_layers(mut work: impl FnMut(usize)) -> Duration {
    let mut best = [Duration::MAX; N_LAYERS];
    for _ in 0..RUNS {
        for (layer, best) in best.iter_mut().enumerate() {
            let start = Instant::now();
            work(layer);
            *best = start.elapsed().min(*best);
        }
    }
    best.iter().sum()
}

fn best_of(mut work: impl FnMut()) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed());
    }
    best
}

fn noise(n: usize, scale: f32) -> Vec<f32> {
    let mut state = 0x2545_f491_u32;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            ((state >> 8) as f32 / (1 << 24) as f32 - 0.5) * scale
        })
        .collect()
}

fn attention_times(pool: &Pool, isa: Isa, n_heads: usize, n_kv_heads: usize, head_dim: usize) {
    let heads = Heads::new(n_heads, n_kv_heads, head_dim).expect("a legal shape");
    let q = noise(N_TOKENS * heads.q_width(), 4.0);
    let kv = noise(N_TOKENS * heads.kv_width(), 4.0);
    let mut out = vec![0.0; q.len()];
    let mut pages = vec![KvPage::try_new(heads, KvFormat::F16).unwrap(); N_TOKENS / PAGE_LEN];
    let mut layers = vec![pages.clone(); N_LAYERS];
    let append = best_of(|| kv_append(isa, heads, &mut pages, 0, &kv, &kv));
    for layer in &mut layers {
        layer.clone_from(&pages);
    }
    let scale = 1.0 / (head_dim as f32).sqrt();
    let prefill = best_of_layers(|layer| {
        let part =
            AttentionPart { pages: &layers[layer], start: 0, n_rows: N_TOKENS, selection: None };
        attention(pool, isa, heads, scale, &q, &[part], &mut out);
    });
    let decode = best_of_layers(|layer| {
        let part = AttentionPart {
            pages: &layers[layer],
            start: N_TOKENS - 1,
            n_rows: 1,
            selection: None,
        };
        let width = heads.q_width();
        attention(pool, isa, heads, scale, &q[..width], &[part], &mut out[..width]);
    });
    let n_fma = N_LAYERS * N_TOKENS * (N_TOKENS + 1) * heads.q_width();
    println!(
        "{:9} {n_heads:3} heads, {n_kv_heads} kv, {head_dim:3}: prefill {:6.1} ms ({:5.1} Gfma/s), \
         decode {:6.3} ms, append {:6.3} ms (30 layers, 512 positions)",
        isa.name(),
        prefill.as_secs_f64() * 1e3,
        n_fma as f64 / prefill.as_secs_f64() / 1e9,
        decode.as_secs_f64() * 1e3,
        append.as_secs_f64() * 1e3 * N_LAYERS as f64,
    );
}

fn row_times(pool: &Pool, isa: Isa) {
    let (width, n_ff) = (576, 1536);
    let x = noise(N_TOKENS * width, 2.0);
    let mut out = vec![0.0; x.len()];
    let norm = best_of(|| rms_norm(pool, isa, &x, &x[..width], 1.0e-5, &mut out));
    let table = RopeTable::new(RopePairs::Adjacent, 64, 1.0e4, 1.0, None).expect("legal settings");
    let mut angles = RopeAngles::default();
    let make = best_of(|| table.angles(0..512, &mut angles));
    let turn = best_of(|| rope(pool, isa, &mut out, 64, &angles));
    let gate = noise(N_TOKENS * n_ff, 8.0);
    let mut gated = vec![0.0; gate.len()];
    let swiglu = best_of(|| swiglu(pool, isa, &gate, &gate, &mut gated));
    println!(
        "{:9} 512 rows: rms_norm {norm:?}, angles {make:?}, rope {turn:?}, swiglu {swiglu:?}",
        isa.name()
    );
}

fn sample_times(isa: Isa, vocab_size: usize) {
    let mut logits = noise(vocab_size, 10.0);
    for (index, x) in logits.iter_mut().enumerate() {
        // A few likely tokens, as a model gives them.
        *x += if index % 1000 == 7 { 8.0 } else { 0.0 };
    }
    let greedy = SampleParams::default();
    let plain = SampleParams { temperature: 0.8, ..greedy.clone() };
    let top_k = SampleParams { top_k: 40, top_p: 0.95, min_p: 0.05, ..plain.clone() };
    let top_p = SampleParams { top_p: 0.95, ..plain.clone() };
    let reported = SampleParams { n_logprobs: Some(20), ..greedy.clone() };
    let mut scratch = SampleScratch::default();
    for (name, params) in [
        ("greedy", greedy),
        ("temperature", plain),
        ("top_k 40, top_p, min_p", top_k),
        ("top_p 0.95", top_p),
        ("greedy, 20 logprobs", reported),
    ] {
        let seen = SeenTokens::default();
        let time = best_of(|| {
            sample(isa, &logits, &params, seen, 5, &mut scratch).expect("a finite row");
        });
        println!("{:9} sample of {vocab_size}, {name}: {time:?}", isa.name());
    }
}

fn main() {
    let pool = Pool::new(1);
    for isa in Isa::available() {
        if isa == Isa::PORTABLE {
            continue;
        }
        for (n_heads, n_kv_heads, head_dim) in [(9, 3, 64), (32, 8, 128), (8, 8, 64)] {
            attention_times(&pool, isa, n_heads, n_kv_heads, head_dim);
        }
        row_times(&pool, isa);
        for vocab_size in [49_152, 250_000] {
            sample_times(isa, vocab_size);
        }
    }
}
