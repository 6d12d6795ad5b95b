//! `y = x · Wᵀ` over every block format.
//!
//! Quantized weights meet int8 activations (`activations.rs`), sixteen rows at a time (`panel.rs`);
//! a format says only how its bytes become codes and scales (`unpack/`). Floating-point weights
//! meet `f32` activations (`float.rs`), or bf16 ones where the machine multiplies those
//! (`bf16.rs`). Which way a product takes depends on format and number of rows alone, and a row's
//! bits not even on the latter.

#[cfg(target_arch = "x86_64")]
mod bf16;
mod expanded;
mod float;
mod panel;
mod unpack;

use super::activations::Activations;
use super::pool::Pool;
use crate::format::BlockFormat;
use crate::isa::Isa;
use crate::tensor::WeightView;

/// Tasks per thread: enough that one slow thread does not hold up the others for long.
const TASKS_PER_THREAD: usize = 8;

/// In what numbers activations meet the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// int8 activations, one scale per 32, where the weights' format has codes; else as the format
    /// does it fastest.
    Int8,
    /// f32 activations; weights are expanded to f32 exactly, in every format.
    F32,
}

/// Multiplies every row of `x` with every row of `w`.
///
/// *Shapes*: `w` `(n_out, n_in)`; `x` `(n_tokens, n_in)`; `y` `(n_tokens, n_out)`.
///
/// # Panics
/// When the shapes do not fit.
pub fn matmul(
    pool: &Pool,
    isa: Isa,
    precision: Precision,
    w: &WeightView<'_>,
    x: &mut Activations,
    y: &mut [f32],
) {
    assert_eq!(x.width(), w.cols(), "width of the activations");
    assert_eq!(Some(y.len()), x.n_tokens().checked_mul(w.rows()), "length of the result");
    if y.is_empty() || w.cols() == 0 {
        y.fill(0.0);
        return;
    }
    if precision == Precision::F32 && (w.format().is_quantized() || w.format() == BlockFormat::Bf16)
    {
        return expanded::run(pool, isa, w, x, y);
    }
    match w.format() {
        BlockFormat::F32 => float::run::<float::F32>(pool, isa, w, x, y),
        BlockFormat::F16 => float::run::<float::F16>(pool, isa, w, x, y),
        #[cfg(target_arch = "x86_64")]
        BlockFormat::Bf16 if isa.has_bf16() => bf16::run(pool, isa, w, x, y),
        BlockFormat::Bf16 => float::run::<float::Bf16>(pool, isa, w, x, y),
        BlockFormat::Q8_0 => panel::run::<unpack::Q8_0>(pool, isa, w, x, y),
        BlockFormat::Q4_0 => panel::run::<unpack::Q4_0>(pool, isa, w, x, y),
        BlockFormat::Q4_1 => panel::run::<unpack::Q4_1>(pool, isa, w, x, y),
        BlockFormat::Q5_0 => panel::run::<unpack::Q5_0>(pool, isa, w, x, y),
        BlockFormat::Q5_1 => panel::run::<unpack::Q5_1>(pool, isa, w, x, y),
        BlockFormat::Q4K => panel::run::<unpack::Q4K>(pool, isa, w, x, y),
        BlockFormat::Q5K => panel::run::<unpack::Q5K>(pool, isa, w, x, y),
        BlockFormat::Q6K => panel::run::<unpack::Q6K>(pool, isa, w, x, y),
        _ => expanded::run(pool, isa, w, x, y),
    }
}

/// Splits `n_items` into ranges for the tasks of a pool: `task(first, count)`.
fn split(pool: &Pool, n_items: usize, task: &(dyn Fn(usize, usize) + Sync)) {
    let n_tasks = match pool.threads() {
        1 => 1,
        n_threads => n_items.min(n_threads * TASKS_PER_THREAD),
    };
    pool.run(n_tasks, &|index| {
        let (first, end) = (index * n_items / n_tasks, (index + 1) * n_items / n_tasks);
        task(first, end - first);
    });
}
