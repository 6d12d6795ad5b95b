//! Kernel passes over a row of logits.

use crate::cpu::exp::exp;
use crate::cpu::lanes::{Kernel, LANES, Lanes};

/// Elements whose greatest is noted together.
pub(super) const BLOCK: usize = 4 * LANES;

/// Elements whose weights are summed together.
pub(super) const WEIGHTS_MAX: usize = 64 * LANES;

/// Notes the greatest of each [`BLOCK`]; says whether all elements are finite.
pub(super) struct Survey<'a> {
    pub(super) row: &'a [f32],
    pub(super) maxima: &'a mut Vec<f32>,
}

impl Kernel for Survey<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> bool {
        self.maxima.clear();
        self.maxima.reserve(self.row.len().div_ceil(BLOCK));
        let (blocks, rest) = self.row.as_chunks::<BLOCK>();
        let zero = lanes.splat(0.0);
        // x * 0 is 0 for what is finite and NaN for the rest; a sum keeps a NaN.
        let mut seen = zero;
        for block in blocks {
            let mut greatest = lanes.splat(f32::NEG_INFINITY);
            for chunk in block.as_chunks::<LANES>().0 {
                let x = lanes.load(chunk);
                greatest = lanes.max(greatest, x);
                seen = lanes.fma(x, zero, seen);
            }
            self.maxima.push(lanes.greatest(greatest));
        }
        if !rest.is_empty() {
            self.maxima.push(rest.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
        !lanes.sum(seen).is_nan() && rest.iter().all(|x| x.is_finite())
    }
}

/// `exp((x - greatest) / temperature)`.
#[inline(always)]
fn weight<L: Lanes>(lanes: L, x: L::Float, greatest: L::Float, temperature: L::Float) -> L::Float {
    exp(lanes, lanes.div(lanes.sub(x, greatest), temperature))
}

/// Sums of weights: one per [`WEIGHTS_MAX`] elements into `sums`, and of those the whole, in f64.
pub(super) struct ExpSums<'a> {
    pub(super) values: &'a [f32],
    pub(super) greatest: f32,
    pub(super) temperature: f32,
    pub(super) sums: &'a mut Vec<f64>,
}

impl Kernel for ExpSums<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f64 {
        let (greatest, temperature) = (lanes.splat(self.greatest), lanes.splat(self.temperature));
        self.sums.clear();
        let mut total = 0.0;
        for block in self.values.chunks(WEIGHTS_MAX) {
            let (chunks, rest) = block.as_chunks::<LANES>();
            let mut sum = lanes.splat(0.0);
            for chunk in chunks {
                sum = lanes.add(sum, weight(lanes, lanes.load(chunk), greatest, temperature));
            }
            if !rest.is_empty() {
                let x = lanes.load_part(rest, f32::NEG_INFINITY);
                sum = lanes.add(sum, weight(lanes, x, greatest, temperature));
            }
            let sum = f64::from(lanes.sum(sum));
            self.sums.push(sum);
            total += sum;
        }
        total
    }
}

/// The weight of each element.
pub(super) struct Weights<'a> {
    pub(super) values: &'a [f32],
    pub(super) greatest: f32,
    pub(super) temperature: f32,
    pub(super) out: &'a mut [f32],
}

impl Kernel for Weights<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (greatest, temperature) = (lanes.splat(self.greatest), lanes.splat(self.temperature));
        let (chunks, rest) = self.values.as_chunks::<LANES>();
        let (out, out_rest) = self.out.as_chunks_mut::<LANES>();
        for (chunk, out) in chunks.iter().zip(out) {
            lanes.store(weight(lanes, lanes.load(chunk), greatest, temperature), out);
        }
        if !rest.is_empty() {
            let x = lanes.load_part(rest, f32::NEG_INFINITY);
            lanes.store_part(weight(lanes, x, greatest, temperature), out_rest);
        }
    }
}
