//! Rotary position embedding: pair `i` of a head turns by `position * base^(-2i / n_rot)`, the pair
//! being `(x[2i], x[2i + 1])` or `(x[i], x[i + n_rot / 2])`.
//!
//! The angles of a pass are the same in every layer, for queries and for keys: [`RopeAngles`] holds
//! their sines and cosines, computed once per pass from a [`RopeTable`].

use thiserror::Error;

use super::lanes::{Kernel, LANES, Lanes, dispatch};
use super::pool::Pool;
use super::rows::for_row_ranges;
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// Settings from which no table can be made.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum RopeError {
    /// Pairs need two elements each.
    #[error("rotary width {0} is not a positive even number")]
    Width(usize),
    /// The base or the scale is no positive finite number.
    #[error("rotary {what} {value} is not a positive finite number")]
    Value {
        /// Which one.
        what: &'static str,
        /// What it is.
        value: f64,
    },
    /// As many factors as pairs are needed.
    #[error("{actual} rotary factors, but there are {expected} pairs")]
    Factors {
        /// Pairs.
        expected: usize,
        /// Factors given.
        actual: usize,
    },
}

/// Which elements of a head make the pairs that turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RopePairs {
    /// `(x[2i], x[2i + 1])`.
    #[default]
    Adjacent,
    /// `(x[i], x[i + n_rot / 2])`.
    Halves,
}

/// The angle per position of every pair.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    pairs: RopePairs,
    per_position: Vec<f64>,
}

impl RopeTable {
    /// Angles `scale * base^(-2i / n_rot) / factors[i]` per position, for the `n_rot / 2` pairs.
    ///
    /// `scale` is 1, or one over the factor of linear context scaling. `factors` are those of a
    /// weight file's `rope_freqs` tensor, if it has one.
    ///
    /// # Errors
    ///
    /// [`RopeError`] if the settings make no sense; they come from a weight file.
    ///
    /// # Source
    ///
    /// Su et al., "RoFormer", 2021; Chen et al., "Extending Context Window of Large Language Models
    /// via Positional Interpolation", 2023.
    pub fn new(
        pairs: RopePairs,
        n_rot: usize,
        base: f64,
        scale: f64,
        factors: Option<&[f32]>,
    ) -> Result<Self, RopeError> {
        if n_rot == 0 || !n_rot.is_multiple_of(2) {
            return Err(RopeError::Width(n_rot));
        }
        let positive = |what, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(value),
            false => Err(RopeError::Value { what, value }),
        };
        let (base, scale) = (positive("base", base)?, positive("scale", scale)?);
        let n_pairs = n_rot / 2;
        let mut per_position = Vec::with_capacity(n_pairs);
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^53")]
        for pair in 0..n_pairs {
            per_position.push(scale * base.powf(-((2 * pair) as f64) / n_rot as f64));
        }
        if let Some(factors) = factors {
            if factors.len() != n_pairs {
                return Err(RopeError::Factors { expected: n_pairs, actual: factors.len() });
            }
            for (angle, &factor) in per_position.iter_mut().zip(factors) {
                *angle /= positive("factor", f64::from(factor))?;
            }
        }
        Ok(Self { pairs, per_position })
    }

    /// Elements of a head that turn.
    #[must_use]
    pub fn n_rot(&self) -> usize {
        2 * self.per_position.len()
    }

    /// Which elements make the pairs.
    #[must_use]
    pub fn pairs(&self) -> RopePairs {
        self.pairs
    }

    /// Sines and cosines for the rows of a pass, into reused memory. In f64, whose sine and cosine
    /// reduce any angle accurately, then rounded.
    pub fn angles(&self, positions: impl IntoIterator<Item = u32>, out: &mut RopeAngles) {
        let (n_rot, n_pairs) = (self.n_rot(), self.per_position.len());
        out.pairs = self.pairs;
        out.n_rot = n_rot;
        out.n_rows = 0;
        out.cosines.clear();
        out.sines.clear();
        for position in positions {
            let start = out.n_rows * n_rot;
            out.n_rows += 1;
            out.cosines.resize(start + n_rot, 0.0);
            out.sines.resize(start + n_rot, 0.0);
            let (cosines, sines) = (&mut out.cosines[start..], &mut out.sines[start..]);
            for (pair, angle) in self.per_position.iter().enumerate() {
                let (sine, cosine) = (f64::from(position) * angle).sin_cos();
                #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
                let (sine, cosine) = (sine as f32, cosine as f32);
                let (first, second) = match self.pairs {
                    RopePairs::Adjacent => (2 * pair, 2 * pair + 1),
                    RopePairs::Halves => (pair, pair + n_pairs),
                };
                (cosines[first], cosines[second]) = (cosine, cosine);
                (sines[first], sines[second]) = (-sine, sine);
            }
        }
    }
}

/// Sines and cosines of the rows of one pass, laid out for vectors: `(n_tokens, n_rot)` each.
#[derive(Debug, Clone, Default)]
pub struct RopeAngles {
    pairs: RopePairs,
    n_rot: usize,
    n_rows: usize,
    /// Each twice, at both elements of its pair.
    cosines: Vec<f32>,
    /// The same, that of the first element negated.
    sines: Vec<f32>,
}

/// Turns the first `n_rot` elements of every head of every row.
///
/// # Shapes
///
/// `x`: `(n_tokens, n_heads, head_dim)`, row `i` at the `i`-th position given to
/// [`RopeTable::angles`].
///
/// # Panics
///
/// When `x` does not have those rows or a head is narrower than `n_rot`.
pub fn rope(pool: &Pool, isa: Isa, x: &mut [f32], head_dim: usize, angles: &RopeAngles) {
    if x.is_empty() && angles.n_rows == 0 {
        return;
    }
    assert!(
        head_dim > 0
            && angles.n_rot <= head_dim
            && x.len().is_multiple_of(angles.n_rows * head_dim),
        "rope: {} elements in {} rows of heads of {head_dim}",
        x.len(),
        angles.n_rows
    );
    let width = x.len() / angles.n_rows;
    let x = SharedMut::new(x);
    for_row_ranges(pool, angles.n_rows, width, &|rows| {
        // SAFETY: the ranges of rows are disjoint.
        let x = unsafe { x.part(rows.start * width, rows.len() * width) };
        dispatch(isa, Rope { x, width, head_dim, first_row: rows.start, angles });
    });
}

struct Rope<'a> {
    x: &'a mut [f32],
    width: usize,
    head_dim: usize,
    first_row: usize,
    angles: &'a RopeAngles,
}

impl Kernel for Rope<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let n_rot = self.angles.n_rot;
        for (index, row) in self.x.chunks_exact_mut(self.width.max(1)).enumerate() {
            let start = (self.first_row + index) * n_rot;
            let cosines = &self.angles.cosines[start..start + n_rot];
            let sines = &self.angles.sines[start..start + n_rot];
            for head in row.chunks_exact_mut(self.head_dim) {
                match self.angles.pairs {
                    RopePairs::Adjacent => turn(lanes, &mut head[..n_rot], cosines, sines),
                    RopePairs::Halves => turn_halves(lanes, &mut head[..n_rot], cosines, sines),
                }
            }
        }
    }
}

/// `x * cosine + swapped(x) * signed sine`, the last addition fused.
#[inline(always)]
fn turn<L: Lanes>(lanes: L, x: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (x, x_rest) = x.as_chunks_mut::<LANES>();
    let (cosines, cosines_rest) = cosines.as_chunks::<LANES>();
    let (sines, sines_rest) = sines.as_chunks::<LANES>();
    for ((x, cosine), sine) in x.iter_mut().zip(cosines).zip(sines) {
        let v = lanes.load(x);
        let straight = lanes.mul(v, lanes.load(cosine));
        lanes.store(lanes.fma(lanes.swap_pairs(v), lanes.load(sine), straight), x);
    }
    if !x_rest.is_empty() {
        let v = lanes.load_part(x_rest, 0.0);
        let straight = lanes.mul(v, lanes.load_part(cosines_rest, 0.0));
        let sine = lanes.load_part(sines_rest, 0.0);
        lanes.store_part(lanes.fma(lanes.swap_pairs(v), sine, straight), x_rest);
    }
}

/// The same arithmetic with an element's partner half a head away.
#[inline(always)]
fn turn_halves<L: Lanes>(lanes: L, x: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let n_pairs = x.len() / 2;
    let (low, high) = x.split_at_mut(n_pairs);
    // The cosines of both halves are equal, and so are the sines but for their sign.
    let (cosines, sines) = (&cosines[..n_pairs], &sines[n_pairs..]);
    let (low, low_rest) = low.as_chunks_mut::<LANES>();
    let (high, high_rest) = high.as_chunks_mut::<LANES>();
    let (cosines, cosines_rest) = cosines.as_chunks::<LANES>();
    let (sines, sines_rest) = sines.as_chunks::<LANES>();
    for (((low, high), cosine), sine) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
        let (a, b) = (lanes.load(low), lanes.load(high));
        let (a, b) = turned(lanes, a, b, lanes.load(cosine), lanes.load(sine));
        lanes.store(a, low);
        lanes.store(b, high);
    }
    if !low_rest.is_empty() {
        let (a, b) = (lanes.load_part(low_rest, 0.0), lanes.load_part(high_rest, 0.0));
        let cosine = lanes.load_part(cosines_rest, 0.0);
        let (a, b) = turned(lanes, a, b, cosine, lanes.load_part(sines_rest, 0.0));
        lanes.store_part(a, low_rest);
        lanes.store_part(b, high_rest);
    }
}

/// `(a cosine - b sine, b cosine + a sine)`, the additions fused.
#[inline(always)]
fn turned<L: Lanes>(
    lanes: L,
    a: L::Float,
    b: L::Float,
    cosine: L::Float,
    sine: L::Float,
) -> (L::Float, L::Float) {
    let minus_sine = lanes.sub(lanes.splat(0.0), sine);
    let first = lanes.fma(b, minus_sine, lanes.mul(a, cosine));
    (first, lanes.fma(a, sine, lanes.mul(b, cosine)))
}
