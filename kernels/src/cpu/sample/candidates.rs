//! Which tokens may be drawn: truncation without sorting the vocabulary.
//!
//! Each rule keeps the best few of an order that is total: by logit, then by lower id. So a rule is
//! a *cut*, the worst token that is kept. Cuts are found by partial selection; candidates
//! themselves always stay in the order of their ids.

use std::cmp::Ordering;

use super::SampleParams;
use super::passes::{BLOCK, ExpSums, Weights};
use crate::cpu::lanes::dispatch;
use crate::isa::Isa;

/// Buckets by logit in which mass is counted, so that only one of them must be sorted.
const BUCKETS: usize = 1024;

/// Logits further below the best than this share the last bucket: together they weigh nothing.
const BUCKETS_SPAN: f32 = 32.0;

/// How far below the best logit to look for `top_p`'s set: usually the first step holds it.
const REACHES: [f32; 4] = [6.0, 12.0, 24.0, f32::INFINITY];

/// A token in the order of better first.
#[derive(Debug, Clone, Copy)]
struct Ranked {
    id: u32,
    logit: f32,
    weight: f32,
}

fn better_first(a: &Ranked, b: &Ranked) -> Ordering {
    // Finite numbers; adding 0 makes a negative zero equal to a positive one.
    (b.logit + 0.0).total_cmp(&(a.logit + 0.0)).then(a.id.cmp(&b.id))
}

/// Tokens in the order of their ids, with their logits.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    ids: Vec<u32>,
    values: Vec<f32>,
    ranked: Vec<Ranked>,
    floats: Vec<f32>,
    masses: Vec<f64>,
}

impl Candidates {
    /// Logits, in the order of ids.
    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    /// The id at a place among [`values`](Self::values).
    pub(super) fn id(&self, place: usize) -> u32 {
        self.ids[place]
    }

    /// The candidates, better first.
    pub(super) fn sorted(&mut self) -> impl Iterator<Item = (u32, f32)> {
        self.rank();
        self.ranked.sort_unstable_by(better_first);
        self.ranked.iter().map(|ranked| (ranked.id, ranked.logit))
    }

    /// Applies `top_k`, `top_p` and `min_p`; says whether that left less than the whole row. If
    /// not, the candidates are undefined.
    pub(super) fn truncate(
        &mut self,
        isa: Isa,
        row: &[f32],
        maxima: &[f32],
        greatest: f32,
        params: &SampleParams,
        sums: &mut Vec<f64>,
    ) -> bool {
        let has_top_k = params.top_k > 0 && params.top_k < row.len();
        let has_top_p = params.top_p < 1.0;
        // By the definition p * best <= this, in logarithms.
        let min_p_floor = if params.min_p > 0.0 { greatest + params.min_p.ln() } else { f32::MIN };
        let min_p_floor = min_p_floor.min(greatest);
        if has_top_k {
            self.keep_best(row, maxima, params.top_k);
            if has_top_p {
                let values = &self.values;
                let total = dispatch(isa, ExpSums { values, greatest, temperature: 1.0, sums });
                self.keep_mass(isa, greatest, f64::from(params.top_p) * total);
            }
        } else if has_top_p {
            let total = dispatch(isa, ExpSums { values: row, greatest, temperature: 1.0, sums });
            let target = f64::from(params.top_p) * total;
            for reach in REACHES {
                self.gather(row, maxima, greatest - reach);
                let values = &self.values;
                let mass = dispatch(isa, ExpSums { values, greatest, temperature: 1.0, sums });
                if mass >= target {
                    break;
                }
            }
            self.keep_mass(isa, greatest, target);
        } else if params.min_p > 0.0 {
            self.gather(row, maxima, min_p_floor);
        } else {
            return false;
        }
        if params.min_p > 0.0 {
            self.retain(|_, logit| logit >= min_p_floor);
        }
        true
    }

    /// The `k` best of a row, or all if it has fewer.
    pub(super) fn keep_best(&mut self, row: &[f32], maxima: &[f32], k: usize) {
        if k == 0 {
            self.ids.clear();
            self.values.clear();
            return;
        }
        // The k-th greatest of the blocks' greatest bounds the k-th best from below.
        let mut floor = f32::NEG_INFINITY;
        if k <= maxima.len() {
            self.floats.clear();
            self.floats.extend_from_slice(maxima);
            floor = *self.floats.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1;
        }
        self.gather(row, maxima, floor);
        if self.ids.len() > k {
            self.rank();
            let cut = *self.ranked.select_nth_unstable_by(k - 1, better_first).1;
            self.cut(cut);
        }
    }

    /// The best candidates whose weights at temperature 1 first reach `target`; at least one.
    fn keep_mass(&mut self, isa: Isa, greatest: f32, target: f64) {
        self.floats.resize(self.values.len(), 0.0);
        let out = &mut self.floats[..self.values.len()];
        dispatch(isa, Weights { values: &self.values, greatest, temperature: 1.0, out });
        let least = self.values.iter().copied().fold(greatest, f32::min);
        #[expect(clippy::cast_precision_loss, reason = "1024")]
        let per_logit = BUCKETS as f32 / (greatest - least).min(BUCKETS_SPAN);
        // Never falls as the logit falls. All equal: 0 times infinity, so NaN, so bucket 0.
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        #[expect(clippy::cast_sign_loss, reason = "no logit is above the greatest")]
        let bucket = |logit| (((greatest - logit) * per_logit) as usize).min(BUCKETS - 1);
        self.masses.clear();
        self.masses.resize(BUCKETS, 0.0);
        for (&logit, &weight) in self.values.iter().zip(&self.floats) {
            self.masses[bucket(logit)] += f64::from(weight);
        }
        let mut mass = 0.0;
        let crossed = self.masses.iter().position(|&more| {
            let is_crossed = mass + more >= target;
            mass += if is_crossed { 0.0 } else { more };
            is_crossed
        });
        // Rounding may leave the target out of reach by a hair: then all are kept.
        let Some(crossed) = crossed else { return };
        // The best token is in bucket 0, and a later one is crossed only by a token in it.
        self.ranked.clear();
        for ((&id, &logit), &weight) in self.ids.iter().zip(&self.values).zip(&self.floats) {
            if bucket(logit) == crossed {
                self.ranked.push(Ranked { id, logit, weight });
            }
        }
        self.ranked.sort_unstable_by(better_first);
        let reached = self.ranked.iter().position(|ranked| {
            mass += f64::from(ranked.weight);
            mass >= target
        });
        let place = reached.unwrap_or(self.ranked.len() - 1);
        self.cut(self.ranked[place]);
    }

    /// Takes the elements of at least `floor`.
    fn gather(&mut self, row: &[f32], maxima: &[f32], floor: f32) {
        self.ids.clear();
        self.values.clear();
        let mut kept = 0;
        for (block, &greatest) in maxima.iter().enumerate() {
            if greatest < floor {
                continue;
            }
            let start = block * BLOCK;
            let end = (start + BLOCK).min(row.len());
            // Written whether kept or not: a branch here would be guessed wrong half the time.
            let first = u32::try_from(start).expect("vocabularies are far smaller than 2^32");
            self.ids.resize(kept + BLOCK, 0);
            self.values.resize(kept + BLOCK, 0.0);
            for (id, &logit) in (first..).zip(&row[start..end]) {
                self.ids[kept] = id;
                self.values[kept] = logit;
                kept += usize::from(logit >= floor);
            }
        }
        self.ids.truncate(kept);
        self.values.truncate(kept);
    }

    fn rank(&mut self) {
        self.ranked.clear();
        let candidates = self.ids.iter().zip(&self.values);
        self.ranked.extend(candidates.map(|(&id, &logit)| Ranked { id, logit, weight: 0.0 }));
    }

    /// Keeps what is not worse than `cut`.
    fn cut(&mut self, cut: Ranked) {
        self.retain(|id, logit| better_first(&Ranked { id, logit, weight: 0.0 }, &cut).is_le());
    }

    fn retain(&mut self, keep: impl Fn(u32, f32) -> bool) {
        let mut kept = 0;
        for place in 0..self.ids.len() {
            let (id, logit) = (self.ids[place], self.values[place]);
            self.ids[kept] = id;
            self.values[kept] = logit;
            kept += usize::from(keep(id, logit));
        }
        self.ids.truncate(kept);
        self.values.truncate(kept);
    }
}
