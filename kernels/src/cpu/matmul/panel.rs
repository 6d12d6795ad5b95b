//! Quantized weights, a *panel* of sixteen rows at a time.
//!
//! A unit of a panel is 16 rows × 32 columns: eight vectors of codes, vector `g` holding columns
//! `4g..4g + 4` of each row in that row's lane, so that one dot-product instruction with four
//! activations, the same in all lanes, advances sixteen outputs and nothing is ever summed across lanes.
//!
//! The arithmetic of one output, the same for every format, level and number of rows: for each unit
//! in order, `acc = fma(scale · a_scale, dot, acc)` with `dot` the exact integer product (for each
//! half of the unit, where scales are per 16 columns), then `acc = fma(min, a_scale · a_sum, acc)` if the
//! format has minima.
//!
//! One row of activations takes the codes straight from registers. More rows share a packed copy
//! of the panel in the thread's scratch.

use std::cell::RefCell;
use std::marker::PhantomData;

use super::super::activations::{Activations, Line, QuantizedRows, TILE_MAX, UNIT_BYTES, UNIT_LEN};
use super::super::pool::Pool;
use super::super::shared_mut::SharedMut;
use super::super::simd::{Kernel, Rows, Simd, dispatch, prefetch};
use super::unpack::{Unit, Unpack};
use crate::isa::Isa;
use crate::tensor::WeightView;

/// Rows of a panel.
pub(super) const PANEL_ROWS: usize = 16;

/// Bytes of the codes of a unit of a panel.
const CODE_BYTES: usize = PANEL_ROWS * UNIT_LEN;

/// Bytes of a vector of scales.
const SCALE_BYTES: usize = PANEL_ROWS * 4;

thread_local! {
    /// One packed panel, and the last rows of a matrix that do not fill a panel. Grows to the
    /// largest size seen and stays.
    static SCRATCH: RefCell<(Vec<Line>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// The product for weights of format `F`.
pub(super) fn run<F: Unpack>(
    pool: &Pool,
    isa: Isa,
    w: &WeightView<'_>,
    x: &mut Activations,
    y: &mut [f32],
) {
    let x = x.quantize(pool, isa);
    let y = SharedMut::new(y);
    super::split(pool, w.rows().div_ceil(PANEL_ROWS), &|first, count| {
        SCRATCH.with_borrow_mut(|(packed, tail)| {
            let panels = Panels::<F> { w, x, y, first, count, packed, tail, format: PhantomData };
            dispatch(isa, panels);
        });
    });
}

/// Some panels of one product.
struct Panels<'a, F> {
    w: &'a WeightView<'a>,
    x: QuantizedRows<'a>,
    y: SharedMut<'a, f32>,
    first: usize,
    count: usize,
    packed: &'a mut Vec<Line>,
    tail: &'a mut Vec<u8>,
    format: PhantomData<F>,
}

impl<F: Unpack> Kernel for Panels<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        for panel in self.first..self.first + self.count {
            let rows = self.rows(panel);
            // The next panel follows in memory; past the end a prefetch is harmless.
            let next = rows.start.wrapping_add(PANEL_ROWS * self.w.row_bytes());
            // SAFETY: `rows` are sixteen whole rows of the matrix or of its padded copy.
            unsafe {
                if self.x.n_tokens == 1 {
                    self.single(simd, panel, rows, next);
                } else {
                    self.batch(simd, panel, rows, next);
                }
            }
        }
    }
}

impl<F: Unpack> Panels<'_, F> {
    /// The sixteen rows of a panel; those past the end of the matrix are zero bytes.
    #[inline(always)]
    fn rows(&mut self, panel: usize) -> Rows {
        let stride = self.w.row_bytes();
        let bytes = &self.w.bytes()[panel * PANEL_ROWS * stride..];
        if bytes.len() >= PANEL_ROWS * stride {
            return Rows { start: bytes.as_ptr(), stride };
        }
        self.tail.clear();
        self.tail.extend_from_slice(bytes);
        self.tail.resize(PANEL_ROWS * stride, 0);
        Rows { start: self.tail.as_ptr(), stride }
    }

    /// One row of activations.
    ///
    /// # Safety
    /// `rows` are sixteen whole rows.
    #[inline(always)]
    unsafe fn single<S: Simd>(&self, simd: S, panel: usize, rows: Rows, next: *const u8) {
        let (mut x, _) = self.x.tile(0);
        let n_blocks = self.x.n_units / F::UNITS;
        let mut acc = [simd.splat_f(0.0)];
        for block in 0..n_blocks {
            // SAFETY: block `block` of each row, of which there are `n_blocks`; the activations have as
            // many units as the rows.
            unsafe {
                let rows = rows.add(block * F::BLOCK_BYTES);
                prefetch_block::<F>(next, block);
                let header = F::header(simd, rows);
                for index in 0..F::UNITS {
                    let unit = F::unit(simd, rows, &header, index);
                    multiply::<S, F, 1, 1>(simd, &unit, x, 0, &mut acc);
                    x = x.add(UNIT_BYTES);
                }
            }
        }
        // SAFETY: no other task has this panel.
        unsafe { self.put(simd, panel, 0, acc) };
    }

    /// Several rows of activations.
    ///
    /// # Safety
    /// `rows` are sixteen whole rows.
    #[inline(always)]
    unsafe fn batch<S: Simd>(&mut self, simd: S, panel: usize, rows: Rows, next: *const u8) {
        let unit_bytes = packed_unit_bytes::<F>();
        let n_lines = self.x.n_units * unit_bytes / 64;
        if self.packed.len() < n_lines {
            self.packed.resize(n_lines, Line([0; 64]));
        }
        let packed = self.packed.as_mut_ptr().cast::<u8>();
        // SAFETY: `rows` as promised; the scratch has room for all units.
        unsafe { pack::<S, F>(simd, rows, next, self.x.n_units, packed) };
        for tile in 0..self.x.n_tokens.div_ceil(TILE_MAX) {
            let (x, width) = self.x.tile(tile);
            let token = tile * TILE_MAX;
            // SAFETY: the tile has `width` places; the panel is packed; no other task has this panel.
            unsafe {
                match width {
                    1 => self.tile::<S, 1, 1>(simd, panel, packed, x, token),
                    2 if S::TILE < 2 => self.tiles::<S, 1, 2>(simd, panel, packed, x, token),
                    2 => self.tile::<S, 2, 2>(simd, panel, packed, x, token),
                    4 if S::TILE < 2 => self.tiles::<S, 1, 4>(simd, panel, packed, x, token),
                    4 if S::TILE < 4 => self.tiles::<S, 2, 4>(simd, panel, packed, x, token),
                    4 => self.tile::<S, 4, 4>(simd, panel, packed, x, token),
                    _ if S::TILE < 2 => self.tiles::<S, 1, 8>(simd, panel, packed, x, token),
                    _ if S::TILE < 8 => self.tiles::<S, 2, 8>(simd, panel, packed, x, token),
                    _ => self.tile::<S, 8, 8>(simd, panel, packed, x, token),
                }
            }
        }
    }

    /// A tile of `W` places, `T` rows at a time.
    ///
    /// # Safety
    /// As for [`tile`](Self::tile).
    #[inline(always)]
    unsafe fn tiles<S: Simd, const T: usize, const W: usize>(
        &self,
        simd: S,
        panel: usize,
        packed: *const u8,
        x: *const u8,
        token: usize,
    ) {
        for place in (0..W).step_by(T) {
            if token + place < self.x.n_tokens {
                // SAFETY: by the caller; `part` moves inside the first unit to place `place`.
                unsafe {
                    let acc = self.dot_panel::<S, T, W>(simd, packed, x, place);
                    self.put(simd, panel, token + place, acc);
                }
            }
        }
    }

    /// A tile of `T` places at once.
    ///
    /// # Safety
    /// `packed` is this panel; `x` is a tile of `W` places whose first row is `token`; no other task has
    /// the panel.
    #[inline(always)]
    unsafe fn tile<S: Simd, const T: usize, const W: usize>(
        &self,
        simd: S,
        panel: usize,
        packed: *const u8,
        x: *const u8,
        token: usize,
    ) {
        // SAFETY: by the caller.
        unsafe {
            let acc = self.dot_panel::<S, T, W>(simd, packed, x, 0);
            self.put(simd, panel, token, acc);
        }
    }

    /// Places `place..place + T` of a tile of `W` with a packed panel.
    ///
    /// # Safety
    /// `packed` is a panel and `x` a tile of `W` places, both of `n_units` units.
    #[inline(always)]
    unsafe fn dot_panel<S: Simd, const T: usize, const W: usize>(
        &self,
        simd: S,
        mut packed: *const u8,
        mut x: *const u8,
        place: usize,
    ) -> [S::Float; T] {
        let mut acc = [simd.splat_f(0.0); T];
        for _ in 0..self.x.n_units {
            // SAFETY: one more unit of both is there.
            unsafe {
                multiply_packed::<S, F, T, W>(simd, packed, x, place, &mut acc);
                packed = packed.add(packed_unit_bytes::<F>());
                x = x.add(W * UNIT_BYTES);
            }
        }
        acc
    }

    /// Writes the outputs of a panel for the rows from `token`, leaving out what is past an end.
    ///
    /// # Safety
    /// No other task has this panel.
    #[inline(always)]
    unsafe fn put<S: Simd, const T: usize>(
        &self,
        simd: S,
        panel: usize,
        token: usize,
        acc: [S::Float; T],
    ) {
        let n_out = self.w.rows();
        let first = panel * PANEL_ROWS;
        let n_rows = PANEL_ROWS.min(n_out - first);
        for (place, acc) in acc.into_iter().enumerate().take(self.x.n_tokens - token) {
            // SAFETY: columns of this panel, which no other task has.
            let to = unsafe { self.y.part((token + place) * n_out + first, n_rows) };
            if n_rows == PANEL_ROWS {
                // SAFETY: sixteen floats.
                unsafe { simd.store_f(to.as_mut_ptr(), acc) };
            } else {
                let mut all = [0.0; PANEL_ROWS];
                // SAFETY: sixteen floats.
                unsafe { simd.store_f(all.as_mut_ptr(), acc) };
                to.copy_from_slice(&all[..n_rows]);
            }
        }
    }
}

/// Bytes of a packed unit: codes, one or two vectors of scales, perhaps one of minima.
const fn packed_unit_bytes<F: Unpack>() -> usize {
    CODE_BYTES + SCALE_BYTES * (1 + F::IS_SPLIT as usize + F::HAS_MIN as usize)
}

/// Asks for as much of the next panel as one block of this one.
#[inline(always)]
fn prefetch_block<F: Unpack>(next: *const u8, block: usize) {
    let start = next.wrapping_add(block * PANEL_ROWS * F::BLOCK_BYTES);
    for line in 0..(PANEL_ROWS * F::BLOCK_BYTES).div_ceil(64) {
        prefetch(start.wrapping_add(line * 64));
    }
}

/// Unpacks all units of a panel, asking for the `next` meanwhile.
///
/// # Safety
/// `rows` are sixteen rows of `n_units` units; `to` has room for as many packed units.
#[inline(always)]
unsafe fn pack<S: Simd, F: Unpack>(
    simd: S,
    rows: Rows,
    next: *const u8,
    n_units: usize,
    mut to: *mut u8,
) {
    for block in 0..n_units / F::UNITS {
        // SAFETY: by the caller.
        unsafe {
            prefetch_block::<F>(next, block);
            let rows = rows.add(block * F::BLOCK_BYTES);
            let header = F::header(simd, rows);
            for index in 0..F::UNITS {
                let unit = F::unit(simd, rows, &header, index);
                for (group, codes) in unit.codes.into_iter().enumerate() {
                    simd.store(to.add(group * 64), codes);
                }
                let scales = to.add(CODE_BYTES).cast::<f32>();
                simd.store_f(scales, unit.scales[0]);
                if F::IS_SPLIT {
                    simd.store_f(scales.add(PANEL_ROWS), unit.scales[1]);
                }
                if F::HAS_MIN {
                    simd.store_f(scales.add(PANEL_ROWS), unit.min);
                }
                to = to.add(packed_unit_bytes::<F>());
            }
        }
    }
}

/// One packed unit with `T` places of a unit of a tile of `W`.
///
/// # Safety
/// `packed` is a packed unit, `x` a unit of a tile of `W` places, and `place + T` at most `W`.
#[inline(always)]
unsafe fn multiply_packed<S: Simd, F: Unpack, const T: usize, const W: usize>(
    simd: S,
    packed: *const u8,
    x: *const u8,
    place: usize,
    acc: &mut [S::Float; T],
) {
    // SAFETY: by the caller, all reads are inside the two units. The optimiser moves the loads to
    // where `multiply` uses them.
    unsafe {
        let scales = packed.add(CODE_BYTES).cast::<f32>();
        let first = simd.load_f(scales);
        let is_long = F::IS_SPLIT || F::HAS_MIN;
        let second = if is_long { simd.load_f(scales.add(PANEL_ROWS)) } else { first };
        let mut codes = [simd.splat(0); 8];
        for (group, codes) in codes.iter_mut().enumerate() {
            *codes = simd.load(packed.add(group * 64));
        }
        let unit = Unit { codes, scales: [first, second], min: second };
        multiply::<S, F, T, W>(simd, &unit, x, place, acc);
    }
}

/// Adds the products of one unit to `acc`: the arithmetic of the head of this module.
///
/// # Safety
/// `x` is a unit of a tile of `W` places, and `place + T` is at most `W`.
#[inline(always)]
unsafe fn multiply<S: Simd, F: Unpack, const T: usize, const W: usize>(
    simd: S,
    unit: &Unit<S>,
    x: *const u8,
    place: usize,
    acc: &mut [S::Float; T],
) {
    let n_halves = if F::IS_SPLIT { 2 } else { 1 };
    let n_groups = 8 / n_halves;
    for half in 0..n_halves {
        let mut dots = [simd.splat(0); T];
        for (t, dot) in dots.iter_mut().enumerate() {
            // SAFETY: by the caller.
            *dot = unsafe { first_term::<S, F, W>(simd, x, place + t, half) };
        }
        for group in half * n_groups..(half + 1) * n_groups {
            for (t, dot) in dots.iter_mut().enumerate() {
                // SAFETY: inside the codes of the unit.
                let four = unsafe { x.add((place + t) * UNIT_LEN + group * 4) };
                // SAFETY: as above.
                let four = simd.splat(unsafe { four.cast::<u32>().read_unaligned() });
                *dot = if F::IS_WIDE {
                    simd.dot_wide(*dot, unit.codes[group], four)
                } else {
                    simd.dot(*dot, unit.codes[group], four)
                };
            }
        }
        for (t, dot) in dots.into_iter().enumerate() {
            // SAFETY: by the caller.
            let scale = simd.splat_f(f32::from_bits(unsafe { word::<W>(x, 0, place + t) }));
            let scale = simd.mul_f(unit.scales[half], scale);
            acc[t] = simd.fma(scale, simd.to_float(dot), acc[t]);
        }
    }
    if F::HAS_MIN {
        for (t, acc) in acc.iter_mut().enumerate() {
            // SAFETY: by the caller.
            let sum = simd.splat_f(f32::from_bits(unsafe { word::<W>(x, 3, place + t) }));
            *acc = simd.fma(unit.min, sum, *acc);
        }
    }
}

/// What a dot product starts from: codes stand `zero` too high, so `-zero · Σ activation`.
///
/// # Safety
/// `x` is a unit of a tile of `W` places, `place` is one of them.
#[inline(always)]
unsafe fn first_term<S: Simd, F: Unpack, const W: usize>(
    simd: S,
    x: *const u8,
    place: usize,
    half: usize,
) -> S::Int {
    let zero_log2 = match F::IS_WIDE {
        true if S::WIDE_IS_OFFSET => Some(7),
        true => None,
        false => F::ZERO_LOG2,
    };
    let Some(count) = zero_log2 else { return simd.splat(0) };
    // SAFETY: by the caller.
    let negated_sum = unsafe {
        match (F::IS_SPLIT, half) {
            (false, _) => word::<W>(x, 1, place),
            (true, 0) => word::<W>(x, 2, place),
            (true, _) => word::<W>(x, 1, place).wrapping_sub(word::<W>(x, 2, place)),
        }
    };
    simd.shl(simd.splat(negated_sum), count)
}

/// Word `kind` of a place, in the order of `activations.rs`.
///
/// # Safety
/// `x` is a unit of a tile of `W` places, `place` is one of them, `kind` is below 4.
#[inline(always)]
unsafe fn word<const W: usize>(x: *const u8, kind: usize, place: usize) -> u32 {
    // SAFETY: by the caller, inside the unit.
    unsafe { x.add(W * UNIT_LEN + (kind * W + place) * 4).cast::<u32>().read_unaligned() }
}
