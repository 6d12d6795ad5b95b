//! BF16 weights where the machine multiplies bf16 pairs (AVX512-BF16).
//!
//! Activations are rounded to bf16 first, to nearest, which costs each product at most 2^-8 of
//! itself. That makes this the one way whose bits differ from other machines'. They are stable all
//! the same: sixteen partial sums, partial sum `l` taking the pairs of columns `2l, 2l + 1` of
//! every 32 in order, the row being continued with zeros to a multiple of 32; then the tree of
//! `Lanes::sum`. The instruction takes subnormal numbers for zero.

use std::arch::x86_64::{
    __m512, __m512bh, _mm512_cvtneps_pbh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_setzero_ps,
};
use std::ops::Range;

use super::super::activations::Activations;
use super::super::lanes::sum_16;
use super::super::pool::Pool;
use super::super::shared_mut::SharedMut;
use crate::isa::Isa;
use crate::tensor::WeightView;

/// Columns of one instruction.
const STEP: usize = 32;

/// Weight rows of a task, as in `float.rs`.
const BLOCK_ROWS: usize = 32;

/// Activation rows that are computed before the weights of a task are read again.
const BLOCK_TOKENS: usize = 16;

/// The product.
///
/// # Panics
/// When `isa` does not prove the instruction.
pub(super) fn run(pool: &Pool, isa: Isa, w: &WeightView<'_>, x: &mut Activations, y: &mut [f32]) {
    assert!(isa.has_bf16(), "the caller chose this way by it");
    let n_tokens = x.n_tokens();
    let row_len = w.cols().next_multiple_of(STEP);
    // SAFETY: the assertion.
    let x = x.round(row_len, |from, to| unsafe { round_row(from, to) });
    let y = SharedMut::new(y);
    super::split(pool, w.rows().div_ceil(BLOCK_ROWS), &|first, count| {
        for block in first..first + count {
            let rows = block * BLOCK_ROWS..((block + 1) * BLOCK_ROWS).min(w.rows());
            for token in (0..n_tokens).step_by(BLOCK_TOKENS) {
                let tokens = token..(token + BLOCK_TOKENS).min(n_tokens);
                // SAFETY: the assertion; no other task has these rows.
                unsafe { Block { w, x, row_len, y }.run(rows.clone(), tokens) };
            }
        }
    });
}

/// Rounds a row; what `to` has more than `from` stays zero.
#[target_feature(enable = "avx512f,avx512bf16")]
fn round_row(from: &[f32], to: &mut [u16]) {
    let (from, rest) = from.as_chunks::<16>();
    let (to, to_rest) = to.as_chunks_mut::<16>();
    let mut last = [0.0; 16];
    last[..rest.len()].copy_from_slice(rest);
    for (index, to) in to.iter_mut().enumerate().take(from.len() + 1) {
        let from = from.get(index).unwrap_or(&last);
        // SAFETY: sixteen floats.
        let rounded = _mm512_cvtneps_pbh(unsafe { _mm512_loadu_ps(from.as_ptr()) });
        // SAFETY: both are 32 plain bytes.
        *to = unsafe { std::mem::transmute::<std::arch::x86_64::__m256bh, [u16; 16]>(rounded) };
    }
    debug_assert!(to_rest.is_empty(), "rows are whole steps");
}

/// One product.
#[derive(Clone, Copy)]
struct Block<'a> {
    w: &'a WeightView<'a>,
    x: &'a [u16],
    row_len: usize,
    y: SharedMut<'a, f32>,
}

impl Block<'_> {
    /// Some weight rows with some activation rows.
    ///
    /// # Safety
    /// The machine has the instructions; no other task has these weight rows.
    #[target_feature(enable = "avx512f,avx512dq,avx512bf16,avx2")]
    unsafe fn run(self, rows: Range<usize>, tokens: Range<usize>) {
        let mut token = tokens.start;
        while token < tokens.end {
            let n_tokens = if token + 4 <= tokens.end { 4 } else { 1 };
            let mut row = rows.start;
            while row < rows.end {
                let rows_left = rows.end - row;
                // SAFETY: by the caller; the rows and tokens of each tile are inside the ranges.
                row += unsafe {
                    match (n_tokens, rows_left) {
                        (4, 4..) => self.tile::<4, 4>(row, token),
                        (4, _) => self.tile::<1, 4>(row, token),
                        (_, 8..) => self.tile::<8, 1>(row, token),
                        _ => self.tile::<1, 1>(row, token),
                    }
                };
            }
            token += n_tokens;
        }
    }

    /// `R` weight rows with `T` activation rows; returns `R`.
    ///
    /// # Safety
    /// As for [`run`](Self::run).
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bf16,avx2")]
    unsafe fn tile<const R: usize, const T: usize>(&self, row: usize, token: usize) -> usize {
        let n = self.w.cols();
        let mut acc = [[_mm512_setzero_ps(); T]; R];
        let (mut w, mut x): ([&[u8]; R], [&[u16]; T]) = ([&[]; R], [&[]; T]);
        for (r, w) in w.iter_mut().enumerate() {
            *w = self.w.row(row + r);
        }
        for (t, x) in x.iter_mut().enumerate() {
            *x = &self.x[(token + t) * self.row_len..][..self.row_len];
        }
        let whole = n / STEP * STEP;
        for at in (0..whole).step_by(STEP) {
            // SAFETY: a whole step of each row is there.
            unsafe { step(w.map_at(2 * at), x.map_at(at), &mut acc) };
        }
        if whole < n {
            let mut last = [[0u8; 2 * STEP]; R];
            let mut from = [std::ptr::null(); R];
            for ((from, last), w) in from.iter_mut().zip(&mut last).zip(w) {
                last[..2 * (n - whole)].copy_from_slice(&w[2 * whole..]);
                *from = last.as_ptr();
            }
            // SAFETY: the padded copies are whole steps, and so are the rows of `x`.
            unsafe { step(from, x.map_at(whole), &mut acc) };
        }
        for t in 0..T {
            // SAFETY: rows of this task, which no other has.
            let to = unsafe { self.y.part((token + t) * self.w.rows() + row, R) };
            for (to, acc) in to.iter_mut().zip(&acc) {
                *to = sum(acc[t]);
            }
        }
        R
    }
}

/// Where each of several rows goes on; a trait for want of closures, which have no instructions
/// enabled.
trait MapAt<const N: usize> {
    fn map_at(&self, at: usize) -> [*const u8; N];
}

impl<T, const N: usize> MapAt<N> for [&[T]; N] {
    #[inline(always)]
    fn map_at(&self, at: usize) -> [*const u8; N] {
        let mut result = [std::ptr::null(); N];
        for (to, row) in result.iter_mut().zip(self) {
            *to = row.as_ptr().wrapping_add(at).cast();
        }
        result
    }
}

/// Adds the products of one step.
///
/// # Safety
/// 64 bytes can be read everywhere.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn step<const R: usize, const T: usize>(
    w: [*const u8; R],
    x: [*const u8; T],
    acc: &mut [[__m512; T]; R],
) {
    // SAFETY: an all-zero value is one of this type.
    let mut columns: [__m512bh; T] = unsafe { std::mem::zeroed() };
    for (columns, x) in columns.iter_mut().zip(x) {
        // SAFETY: by the caller.
        *columns = unsafe { load(x) };
    }
    for (acc, w) in acc.iter_mut().zip(w) {
        // SAFETY: by the caller.
        let w = unsafe { load(w) };
        for (acc, x) in acc.iter_mut().zip(columns) {
            *acc = _mm512_dpbf16_ps(*acc, w, x);
        }
    }
}

/// Sixteen pairs.
///
/// # Safety
/// 64 bytes can be read.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(from: *const u8) -> __m512bh {
    // SAFETY: by the caller; the types are 64 plain bytes each.
    unsafe {
        std::mem::transmute::<std::arch::x86_64::__m512i, __m512bh>(_mm512_loadu_si512(from.cast()))
    }
}

/// The tree of `Lanes::sum`.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx2")]
fn sum(a: __m512) -> f32 {
    // SAFETY: this function enables the instructions.
    unsafe { sum_16(a) }
}
