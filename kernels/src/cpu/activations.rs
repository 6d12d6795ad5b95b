//! The inputs of matrix products: `f32` rows, and their int8 and bf16 forms made when first asked
//! for.
//!
//! Owns the arithmetic of the int8 form, `quantize_unit`, which is part of the specification:
//! each 32 elements of a row (a *unit*) get a scale `amax / 127`, codes `round(x · 127 / amax)`
//! with ties to even, and the sum of the codes. `amax` is taken over the bits of the absolute
//! values, as integers, so a NaN or an infinity wins it, becomes the scale, and so reaches every
//! result.
//!
//! Layout of the int8 form: rows go in *tiles* of 8; the last tile has 1, 2, 4 or 8 places, some
//! perhaps empty. A tile of `W` places is its units in order, each of `48 · W` bytes: `W × 32`
//! codes, `W` scales (f32), `W` negated sums (i32), `W` negated sums of the first 16 codes (i32),
//! `W` products scale · sum (f32).

use super::lanes::{Kernel, Lanes, dispatch};
use super::pool::Pool;
use super::shared_mut::SharedMut;
use crate::isa::Isa;

/// Elements that share a scale.
pub const UNIT_LEN: usize = 32;

/// Most rows in a tile.
pub(super) const TILE_MAX: usize = 8;

/// Bytes of a unit of one row.
pub(super) const UNIT_BYTES: usize = 48;

/// Smaller magnitudes than this become zero: their scale's inverse would overflow.
const AMAX_MIN: f32 = 1e-30;

/// Bytes on a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

/// Rows of activations, reusable scratch.
///
/// *Shapes*: `(n_tokens, width)`, row-major, `f32`, in host memory.
#[derive(Debug, Default)]
pub struct Activations {
    rows: Vec<f32>,
    n_tokens: usize,
    width: usize,
    codes: Vec<Line>,
    is_quantized: bool,
    rounded: Vec<u16>,
    is_rounded: bool,
}

impl Activations {
    /// No rows; [`load`](Self::load) brings some.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Copies `x`, of shape `(n_tokens, width)`, and forgets what was here.
    ///
    /// # Panics
    /// When `x` has another length.
    pub fn load(&mut self, _pool: &Pool, x: &[f32], n_tokens: usize, width: usize) {
        assert_eq!(Some(x.len()), n_tokens.checked_mul(width), "{n_tokens} rows of {width}");
        self.rows.clear();
        self.rows.extend_from_slice(x);
        self.n_tokens = n_tokens;
        self.width = width;
        self.is_quantized = false;
        self.is_rounded = false;
    }

    /// Rows.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Elements in a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// All rows, `(n_tokens, width)`.
    #[must_use]
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Makes the bf16 form with `round`, unless it is there already: rows of `row_len`, zeros at
    /// the end.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn round(&mut self, row_len: usize, round: impl Fn(&[f32], &mut [u16])) -> &[u16] {
        if !self.is_rounded {
            self.rounded.clear();
            self.rounded.resize(self.n_tokens * row_len, 0);
            let rows = self.rows.chunks_exact(self.width);
            for (from, to) in rows.zip(self.rounded.chunks_exact_mut(row_len)) {
                round(from, to);
            }
            self.is_rounded = true;
        }
        &self.rounded
    }

    /// Makes the int8 form, unless it is there already.
    pub(super) fn quantize(&mut self, pool: &Pool, isa: Isa) -> QuantizedRows<'_> {
        let n_units = self.width / UNIT_LEN;
        let n_tiles = self.n_tokens.div_ceil(TILE_MAX);
        if !self.is_quantized {
            let n_places =
                (0..n_tiles).map(|tile| tile_width(self.n_tokens - tile * TILE_MAX)).sum::<usize>();
            let n_bytes = n_places * n_units * UNIT_BYTES;
            self.codes.resize(n_bytes.div_ceil(64), Line([0; 64]));
            let lines = SharedMut::new(&mut self.codes);
            let (rows, n_tokens) = (&self.rows, self.n_tokens);
            pool.run(n_tiles, &|tile| {
                let width = tile_width(n_tokens - tile * TILE_MAX);
                let start = tile * TILE_MAX * n_units * UNIT_BYTES;
                let n_bytes = width * n_units * UNIT_BYTES;
                // SAFETY: tiles lie one after the other, and full ones are whole cache lines.
                let lines = unsafe { lines.part(start / 64, n_bytes.div_ceil(64)) };
                let first = tile * TILE_MAX;
                let n_rows = (n_tokens - first).min(TILE_MAX);
                let row_len = n_units * UNIT_LEN;
                let rows = &rows[first * row_len..][..n_rows * row_len];
                dispatch(isa, QuantizeTile { rows, n_rows, width, n_units, lines });
            });
            self.is_quantized = true;
        }
        QuantizedRows { lines: &self.codes, n_tokens: self.n_tokens, n_units }
    }
}

/// Places in a tile that starts where `rows_left` rows are left.
pub(super) fn tile_width(rows_left: usize) -> usize {
    rows_left.min(TILE_MAX).next_power_of_two()
}

/// The int8 form of all rows.
#[derive(Clone, Copy)]
pub(super) struct QuantizedRows<'a> {
    lines: &'a [Line],
    /// Rows.
    pub(super) n_tokens: usize,
    /// Units in a row.
    pub(super) n_units: usize,
}

impl QuantizedRows<'_> {
    /// The first byte of a tile, and its places.
    pub(super) fn tile(&self, tile: usize) -> (*const u8, usize) {
        let width = tile_width(self.n_tokens - tile * TILE_MAX);
        let start = tile * TILE_MAX * self.n_units * UNIT_BYTES;
        assert!(start + width * self.n_units * UNIT_BYTES <= self.lines.len() * 64);
        // SAFETY: inside the lines by the assertion.
        (unsafe { self.lines.as_ptr().cast::<u8>().add(start) }, width)
    }
}

/// Quantizes the rows of one tile.
struct QuantizeTile<'a> {
    rows: &'a [f32],
    n_rows: usize,
    width: usize,
    n_units: usize,
    lines: &'a mut [Line],
}

impl Kernel for QuantizeTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _lanes: L) {
        // Plain loops: they vectorise for whichever level this is compiled for.
        let unit_bytes = self.width * UNIT_BYTES;
        assert!(self.lines.len() * 64 >= self.n_units * unit_bytes);
        let bytes = self.lines.as_flattened_bytes();
        for (row, x) in
            self.rows.chunks_exact(self.n_units * UNIT_LEN).enumerate().take(self.n_rows)
        {
            for (x, unit) in
                x.as_chunks::<UNIT_LEN>().0.iter().zip(bytes.chunks_exact_mut(unit_bytes))
            {
                let quantized = quantize_unit(x);
                let (codes, tail) = unit.split_at_mut(self.width * UNIT_LEN);
                for (to, code) in
                    codes[row * UNIT_LEN..][..UNIT_LEN].iter_mut().zip(quantized.codes)
                {
                    *to = code.cast_unsigned();
                }
                let words = [
                    quantized.scale.to_ne_bytes(),
                    (-quantized.sum).to_ne_bytes(),
                    (-quantized.sum_first).to_ne_bytes(),
                    (quantized.scale * quantized.sum as f32).to_ne_bytes(),
                ];
                for (kind, word) in words.into_iter().enumerate() {
                    tail[(kind * self.width + row) * 4..][..4].copy_from_slice(&word);
                }
            }
        }
    }
}

trait AsBytes {
    fn as_flattened_bytes(&mut self) -> &mut [u8];
}

impl AsBytes for [Line] {
    #[inline(always)]
    fn as_flattened_bytes(&mut self) -> &mut [u8] {
        // SAFETY: a line is 64 plain bytes without padding.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), self.len() * 64) }
    }
}

/// The int8 form of 32 elements.
pub(super) struct QuantizedUnit {
    codes: [i8; UNIT_LEN],
    scale: f32,
    sum: i32,
    sum_first: i32,
}

/// Quantizes 32 elements; see the head of this module.
#[inline(always)]
pub(super) fn quantize_unit(x: &[f32; UNIT_LEN]) -> QuantizedUnit {
    // Added to a number below 2^22 this leaves its integer, rounded ties to even, in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let mut bits_max = 0;
    for value in x {
        bits_max = bits_max.max(value.to_bits() & 0x7fff_ffff);
    }
    let amax = f32::from_bits(bits_max);
    // A non-finite scale makes every product non-finite whatever the codes are: they stay zero.
    let inverse = if amax.is_finite() && amax >= AMAX_MIN { 127.0 / amax } else { 0.0 };
    let mut whole = [0i32; UNIT_LEN];
    for (whole, value) in whole.iter_mut().zip(x) {
        let rounded = (value * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits());
        *whole = rounded.cast_signed();
    }
    if !amax.is_finite() {
        whole = [0; UNIT_LEN];
    }
    let mut codes = [0; UNIT_LEN];
    for (code, whole) in codes.iter_mut().zip(whole) {
        #[expect(clippy::cast_possible_truncation, reason = "at most 127 by the choice of scale")]
        let narrow = whole as i8;
        *code = narrow;
    }
    // Both halves at once, by halving: a plain sum compiles to one addition after another.
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            whole[lane] += whole[lane + half];
            whole[16 + lane] += whole[16 + lane + half];
        }
    }
    let (sum_first, sum) = (whole[0], whole[0] + whole[16]);
    QuantizedUnit { codes, scale: amax / 127.0, sum, sum_first }
}
