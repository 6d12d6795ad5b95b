//! The rule position after position.
//!
//! One walk over the strip takes in what a row learnt and sums up what the next one needs. With
//! the state `S` before a row: `d = b (v - e^g Sᵀ k)`, `out = e^g Sᵀ q + (k · q) d`, and then
//! `S ← e^g S + k dᵀ`. Sums run over the key's elements in order.

use super::{Scratch, Task};
use crate::cpu::lanes::Lanes;

/// Takes the rows into `W` vectors of columns from `chunk` on; the first is row `first` of the
/// pass.
#[inline(always)]
pub(super) fn run<L: Lanes, const W: usize>(
    lanes: L,
    task: &Task<'_>,
    first: usize,
    chunk: usize,
    scratch: &mut Scratch,
) {
    let rows = &scratch.rows;
    let strip = &mut scratch.strip.as_chunks_mut::<W>().0[..rows.head_dim];
    let mut sums = [[lanes.splat(0.0); W]; 2];
    let of_first = rows.key(0).iter().zip(rows.query(0));
    for (key, (to, (&k, &q))) in strip.iter_mut().zip(of_first).enumerate() {
        let from = task.state::<W>(key, chunk);
        for w in 0..W {
            let x = lanes.load(&from[w]);
            lanes.store(x, &mut to[w].0);
            sums[0][w] = lanes.fma(lanes.splat(k), x, sums[0][w]);
            sums[1][w] = lanes.fma(lanes.splat(q), x, sums[1][w]);
        }
    }
    for row in 0..rows.len() {
        let decay = lanes.splat(rows.decay[row]);
        let (rate, likeness) = (lanes.splat(rows.rate[row]), lanes.splat(rows.likeness[row]));
        let (values, out) = (task.values(first + row, chunk), task.out::<W>(first + row, chunk));
        let mut learnt = [lanes.splat(0.0); W];
        for w in 0..W {
            let predicted = lanes.mul(decay, sums[0][w]);
            learnt[w] = lanes.mul(rate, lanes.sub(lanes.load(&values[w]), predicted));
            let kept = lanes.mul(decay, sums[1][w]);
            lanes.store(lanes.fma(likeness, learnt[w], kept), &mut out[w]);
        }
        let key = rows.key(row);
        if row + 1 == rows.len() {
            for (index, (from, &k)) in strip.iter().zip(key).enumerate() {
                let to = task.state::<W>(index, chunk);
                for w in 0..W {
                    let x = lanes.mul(decay, lanes.load(&from[w].0));
                    lanes.store(lanes.fma(lanes.splat(k), learnt[w], x), &mut to[w]);
                }
            }
            return;
        }
        sums = [[lanes.splat(0.0); W]; 2];
        let of_next = rows.key(row + 1).iter().zip(rows.query(row + 1));
        for ((x_of_key, &k), (&next_k, &next_q)) in strip.iter_mut().zip(key).zip(of_next) {
            for w in 0..W {
                let x = lanes.mul(decay, lanes.load(&x_of_key[w].0));
                let x = lanes.fma(lanes.splat(k), learnt[w], x);
                lanes.store(x, &mut x_of_key[w].0);
                sums[0][w] = lanes.fma(lanes.splat(next_k), x, sums[0][w]);
                sums[1][w] = lanes.fma(lanes.splat(next_q), x, sums[1][w]);
            }
        }
    }
}
