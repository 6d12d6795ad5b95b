//! One unit of a panel with some rows of activations, and the packed form of a panel.
//!
//! A packed unit is its eight vectors of codes, then one or two vectors of scales, then perhaps one
//! of minima.

use super::super::super::activations::UNIT_LEN;
use super::super::super::lanes::{IntLanes, Rows, prefetch};
use super::super::unpack::{Unit, Unpack};
use super::PANEL_ROWS;

/// Bytes of a vector of scales.
const SCALE_BYTES: usize = PANEL_ROWS * 4;

/// Bytes of the codes of a unit of a panel.
const CODE_BYTES: usize = PANEL_ROWS * UNIT_LEN;

/// Bytes of a packed unit: codes, one or two vectors of scales, perhaps one of minima.
pub(super) const fn packed_unit_bytes<F: Unpack>() -> usize {
    CODE_BYTES + SCALE_BYTES * (1 + F::IS_SPLIT as usize + F::HAS_MIN as usize)
}

/// Asks for as much of the next panel as one block of this one.
#[inline(always)]
pub(super) fn prefetch_block<F: Unpack>(next: *const u8, block: usize) {
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
pub(super) unsafe fn pack<L: IntLanes, F: Unpack>(
    lanes: L,
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
            let header = F::header(lanes, rows);
            for index in 0..F::UNITS {
                let unit = F::unit(lanes, rows, &header, index);
                for (group, codes) in unit.codes.into_iter().enumerate() {
                    lanes.store_int(codes, to.add(group * 64));
                }
                let scales = to.add(CODE_BYTES);
                lanes.store_f32(unit.scales[0], scales);
                if F::IS_SPLIT {
                    lanes.store_f32(unit.scales[1], scales.add(SCALE_BYTES));
                }
                if F::HAS_MIN {
                    lanes.store_f32(unit.min, scales.add(SCALE_BYTES));
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
pub(super) unsafe fn multiply_packed<L: IntLanes, F: Unpack, const T: usize, const W: usize>(
    lanes: L,
    packed: *const u8,
    x: *const u8,
    place: usize,
    acc: &mut [L::Float; T],
) {
    // SAFETY: by the caller, all reads are inside the two units. The optimiser moves the loads to
    // where `multiply` uses them.
    unsafe {
        let scales = packed.add(CODE_BYTES);
        let first = lanes.load_f32(scales);
        let is_long = F::IS_SPLIT || F::HAS_MIN;
        let second = if is_long { lanes.load_f32(scales.add(SCALE_BYTES)) } else { first };
        let mut codes = [lanes.splat_int(0); 8];
        for (group, codes) in codes.iter_mut().enumerate() {
            *codes = lanes.load_int(packed.add(group * 64));
        }
        let unit = Unit { codes, scales: [first, second], min: second };
        multiply::<L, F, T, W>(lanes, &unit, x, place, acc);
    }
}

/// Adds the products of one unit to `acc`: the arithmetic of the head of this module.
///
/// # Safety
/// `x` is a unit of a tile of `W` places, and `place + T` is at most `W`.
#[inline(always)]
pub(super) unsafe fn multiply<L: IntLanes, F: Unpack, const T: usize, const W: usize>(
    lanes: L,
    unit: &Unit<L>,
    x: *const u8,
    place: usize,
    acc: &mut [L::Float; T],
) {
    let n_halves = if F::IS_SPLIT { 2 } else { 1 };
    let n_groups = 8 / n_halves;
    for half in 0..n_halves {
        let mut dots = [lanes.splat_int(0); T];
        for (t, dot) in dots.iter_mut().enumerate() {
            // SAFETY: by the caller.
            *dot = unsafe { first_term::<L, F, W>(lanes, x, place + t, half) };
        }
        for group in half * n_groups..(half + 1) * n_groups {
            for (t, dot) in dots.iter_mut().enumerate() {
                // SAFETY: inside the codes of the unit.
                let four = unsafe { x.add((place + t) * UNIT_LEN + group * 4) };
                // SAFETY: as above.
                let four = lanes.splat_int(unsafe { four.cast::<u32>().read_unaligned() });
                *dot = if F::IS_WIDE {
                    lanes.dot_wide(*dot, unit.codes[group], four)
                } else {
                    lanes.dot(*dot, unit.codes[group], four)
                };
            }
        }
        for (t, dot) in dots.into_iter().enumerate() {
            // SAFETY: by the caller.
            let scale = lanes.splat(f32::from_bits(unsafe { word::<W>(x, 0, place + t) }));
            let scale = lanes.mul(unit.scales[half], scale);
            acc[t] = lanes.fma(scale, lanes.to_float(dot), acc[t]);
        }
    }
    if F::HAS_MIN {
        for (t, acc) in acc.iter_mut().enumerate() {
            // SAFETY: by the caller.
            let sum = lanes.splat(f32::from_bits(unsafe { word::<W>(x, 3, place + t) }));
            *acc = lanes.fma(unit.min, sum, *acc);
        }
    }
}

/// What a dot product starts from: codes stand `zero` too high, so `-zero · Σ activation`.
///
/// # Safety
/// `x` is a unit of a tile of `W` places, `place` is one of them.
#[inline(always)]
unsafe fn first_term<L: IntLanes, F: Unpack, const W: usize>(
    lanes: L,
    x: *const u8,
    place: usize,
    half: usize,
) -> L::Int {
    let zero_log2 = match F::IS_WIDE {
        true if L::WIDE_IS_OFFSET => Some(7),
        true => None,
        false => F::ZERO_LOG2,
    };
    let Some(count) = zero_log2 else { return lanes.splat_int(0) };
    // SAFETY: by the caller.
    let negated_sum = unsafe {
        match (F::IS_SPLIT, half) {
            (false, _) => word::<W>(x, 1, place),
            (true, 0) => word::<W>(x, 2, place),
            (true, _) => word::<W>(x, 1, place).wrapping_sub(word::<W>(x, 2, place)),
        }
    };
    lanes.shl(lanes.splat_int(negated_sum), count)
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
