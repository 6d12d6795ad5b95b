//! One unit of a panel with some rows of activations, and the packed form of a panel.
//!
//! A packed unit is its eight vectors of codes, then one or two vectors of scales, then perhaps one
//! of minima.

use super::super::super::activations::UNIT_LEN;
use super::super::super::simd::{Rows, Simd, prefetch};
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
pub(super) unsafe fn pack<S: Simd, F: Unpack>(
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
pub(super) unsafe fn multiply_packed<S: Simd, F: Unpack, const T: usize, const W: usize>(
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
pub(super) unsafe fn multiply<S: Simd, F: Unpack, const T: usize, const W: usize>(
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
