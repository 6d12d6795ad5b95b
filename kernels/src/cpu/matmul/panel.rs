//! Quantized weights, a *panel* of sixteen rows at a time.
//!
//! A unit of a panel is 16 rows × 32 columns: eight vectors of codes, vector `g` holding columns
//! `4g..4g + 4` of each row in that row's lane, so that one dot-product instruction with four
//! activations, the same in all lanes, advances sixteen outputs and nothing is ever summed across
//! lanes.
//!
//! The arithmetic of one output, the same for every format, level and number of rows: for each unit
//! in order, `acc = fma(scale · a_scale, dot, acc)` with `dot` the exact integer product (for each
//! half of the unit, where scales are per 16 columns), then `acc = fma(min, a_scale · a_sum, acc)`
//! if the format has minima.
//!
//! One row of activations takes the codes straight from registers. More rows share a packed copy
//! of the panel in the thread's scratch.

mod multiply;

use std::cell::RefCell;
use std::marker::PhantomData;

use super::super::activations::{Activations, Line, QuantizedRows, TILE_MAX, UNIT_BYTES};
use super::super::lanes::{IntLanes, Kernel, Rows, dispatch};
use super::super::pool::Pool;
use super::super::shared_mut::SharedMut;
use super::unpack::Unpack;
use crate::isa::Isa;
use crate::tensor::WeightView;

use multiply::{multiply, multiply_packed, pack, packed_unit_bytes, prefetch_block};

/// Rows of a panel.
pub(super) const PANEL_ROWS: usize = 16;

type Scratch = (Vec<Line>, Vec<u8>);

thread_local! {
    /// One packed panel, and the last rows of a matrix that do not fill a panel. Grows to the
    /// largest size seen and stays.
    static SCRATCH: RefCell<Scratch> = const { RefCell::new((Vec::new(), Vec::new())) };
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
    fn run<L: IntLanes>(mut self, lanes: L) {
        for panel in self.first..self.first + self.count {
            let rows = self.rows(panel);
            // The next panel follows in memory; past the end a prefetch is harmless.
            let next = rows.start.wrapping_add(PANEL_ROWS * self.w.row_bytes());
            // SAFETY: `rows` are sixteen whole rows of the matrix or of its padded copy.
            unsafe {
                if self.x.n_tokens == 1 {
                    self.single(lanes, panel, rows, next);
                } else {
                    self.batch(lanes, panel, rows, next);
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
    unsafe fn single<L: IntLanes>(&self, lanes: L, panel: usize, rows: Rows, next: *const u8) {
        let (mut x, _) = self.x.tile(0);
        let n_blocks = self.x.n_units / F::UNITS;
        let mut acc = [lanes.splat(0.0)];
        for block in 0..n_blocks {
            // SAFETY: block `block` of each row, of which there are `n_blocks`; the activations
            // have as many units as the rows.
            unsafe {
                let rows = rows.add(block * F::BLOCK_BYTES);
                prefetch_block::<F>(next, block);
                let header = F::header(lanes, rows);
                for index in 0..F::UNITS {
                    let unit = F::unit(lanes, rows, &header, index);
                    multiply::<L, F, 1, 1>(lanes, &unit, x, 0, &mut acc);
                    x = x.add(UNIT_BYTES);
                }
            }
        }
        // SAFETY: no other task has this panel.
        unsafe { self.put(lanes, panel, 0, acc) };
    }

    /// Several rows of activations.
    ///
    /// # Safety
    /// `rows` are sixteen whole rows.
    #[inline(always)]
    unsafe fn batch<L: IntLanes>(&mut self, lanes: L, panel: usize, rows: Rows, next: *const u8) {
        let unit_bytes = packed_unit_bytes::<F>();
        let n_lines = self.x.n_units * unit_bytes / 64;
        if self.packed.len() < n_lines {
            self.packed.resize(n_lines, Line([0; 64]));
        }
        let packed = self.packed.as_mut_ptr().cast::<u8>();
        // SAFETY: `rows` as promised; the scratch has room for all units.
        unsafe { pack::<L, F>(lanes, rows, next, self.x.n_units, packed) };
        for tile in 0..self.x.n_tokens.div_ceil(TILE_MAX) {
            let (x, width) = self.x.tile(tile);
            let token = tile * TILE_MAX;
            // SAFETY: the tile has `width` places; the panel is packed; no other task has this
            // panel.
            unsafe {
                match (width, L::TILE) {
                    (1, _) => self.tile::<L, 1, 1>(lanes, panel, packed, x, token),
                    (2, 1) => self.tile::<L, 1, 2>(lanes, panel, packed, x, token),
                    (2, _) => self.tile::<L, 2, 2>(lanes, panel, packed, x, token),
                    (4, 1) => self.tile::<L, 1, 4>(lanes, panel, packed, x, token),
                    (4, 2) => self.tile::<L, 2, 4>(lanes, panel, packed, x, token),
                    (4, _) => self.tile::<L, 4, 4>(lanes, panel, packed, x, token),
                    (_, 1) => self.tile::<L, 1, 8>(lanes, panel, packed, x, token),
                    (_, 2) => self.tile::<L, 2, 8>(lanes, panel, packed, x, token),
                    _ => self.tile::<L, 8, 8>(lanes, panel, packed, x, token),
                }
            }
        }
    }

    /// A tile of `W` places, `T` of them at a time.
    ///
    /// # Safety
    /// `packed` is this panel; `x` is a tile of `W` places whose first row is `token`; no other
    /// task has the panel.
    #[inline(always)]
    unsafe fn tile<L: IntLanes, const T: usize, const W: usize>(
        &self,
        lanes: L,
        panel: usize,
        packed: *const u8,
        x: *const u8,
        token: usize,
    ) {
        for place in (0..W).step_by(T) {
            if token + place < self.x.n_tokens {
                // SAFETY: by the caller; the place is one of the tile.
                unsafe {
                    let acc = self.dot_panel::<L, T, W>(lanes, packed, x, place);
                    self.put(lanes, panel, token + place, acc);
                }
            }
        }
    }

    /// Places `place..place + T` of a tile of `W` with a packed panel.
    ///
    /// # Safety
    /// `packed` is a panel and `x` a tile of `W` places, both of `n_units` units.
    #[inline(always)]
    unsafe fn dot_panel<L: IntLanes, const T: usize, const W: usize>(
        &self,
        lanes: L,
        mut packed: *const u8,
        mut x: *const u8,
        place: usize,
    ) -> [L::Float; T] {
        let mut acc = [lanes.splat(0.0); T];
        for _ in 0..self.x.n_units {
            // SAFETY: one more unit of both is there.
            unsafe {
                multiply_packed::<L, F, T, W>(lanes, packed, x, place, &mut acc);
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
    unsafe fn put<L: IntLanes, const T: usize>(
        &self,
        lanes: L,
        panel: usize,
        token: usize,
        acc: [L::Float; T],
    ) {
        let n_out = self.w.rows();
        let first = panel * PANEL_ROWS;
        let n_rows = PANEL_ROWS.min(n_out - first);
        for (place, acc) in acc.into_iter().enumerate().take(self.x.n_tokens - token) {
            // SAFETY: columns of this panel, which no other task has.
            let to = unsafe { self.y.part((token + place) * n_out + first, n_rows) };
            match to.first_chunk_mut() {
                Some(to) => lanes.store(acc, to),
                None => lanes.store_part(acc, to),
            }
        }
    }
}
