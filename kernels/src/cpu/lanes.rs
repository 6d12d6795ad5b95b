//! Sixteen lanes of 32 bits: the one vector shape in which every kernel here is written once.
//!
//! A 512-bit register, two 256-bit ones, or an array of sixteen: each level computes the same
//! operations in the same order with the same rounding (`fma` is fused everywhere), so all levels
//! give equal bits. [`Lanes`] has the operations on floats, [`IntLanes`] adds those on integers and
//! on packed bytes. Which level runs is decided once per call by [`dispatch`].
//!
//! A value of a type that implements [`Lanes`] is proof that its instructions exist: it is made
//! only in its level's `run`, which [`dispatch`] calls with an [`Isa`] in hand. So operations on
//! registers and references are safe; those at an address leave only the address to the caller.

use crate::isa::{Isa, Level};

/// Methods of a level whose instructions touch no memory.
#[cfg(target_arch = "x86_64")]
macro_rules! ops {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $type),*) -> $result {
            // SAFETY: `self` proves the instructions; nothing here touches memory.
            unsafe { $body }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::sum_16;

#[cfg(target_endian = "big")]
compile_error!("weight files and packed bytes are read as they are: little-endian");

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Sixteen floats in memory, on a cache line of their own.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Chunk(pub(crate) [f32; LANES]);

impl Chunk {
    /// All zero.
    pub(crate) const ZERO: Self = Self([0.0; LANES]);
}

/// Sixteen rows of equal length in memory, as seen from one place in the first row.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    /// The place in the first row.
    pub(crate) start: *const u8,
    /// Bytes from one row to the next.
    pub(crate) stride: usize,
}

impl Rows {
    /// The same rows, `bytes` further on.
    ///
    /// # Safety
    /// The place is inside the allocation, or one past it.
    #[inline(always)]
    pub(crate) unsafe fn add(self, bytes: usize) -> Self {
        // SAFETY: by the caller.
        Self { start: unsafe { self.start.add(bytes) }, stride: self.stride }
    }

    /// The place in row `row`.
    ///
    /// # Safety
    /// `row` is below 16 and all sixteen rows are inside the allocation.
    #[inline(always)]
    pub(crate) unsafe fn row(self, row: usize) -> *const u8 {
        // SAFETY: by the caller.
        unsafe { self.start.add(row * self.stride) }
    }
}

/// Operations on sixteen floats. Unless said otherwise each lane is computed by itself.
pub(crate) trait Lanes: Copy + Send + Sync {
    /// Sixteen `f32`.
    type Float: Copy;

    /// Whether there are 32 vector registers of 16 lanes, so that large tiles stay in them.
    const WIDE: bool;

    /// Sixteen `f32` from any address.
    ///
    /// # Safety
    /// 64 bytes can be read there.
    unsafe fn load_f32(self, from: *const u8) -> Self::Float;
    /// Sixteen f16 from any address. Exact.
    ///
    /// # Safety
    /// 32 bytes can be read there.
    unsafe fn load_f16(self, from: *const u8) -> Self::Float;
    /// Sixteen bf16, the upper halves of `f32`, from any address. Exact.
    ///
    /// # Safety
    /// 32 bytes can be read there.
    unsafe fn load_bf16(self, from: *const u8) -> Self::Float;
    /// Sixteen `f32` to any address.
    ///
    /// # Safety
    /// 64 bytes can be written there.
    unsafe fn store_f32(self, v: Self::Float, to: *mut u8);
    /// To memory, rounded to f16 bits (to nearest, ties to even; too large becomes infinite).
    fn store_half(self, v: Self::Float, to: &mut [u16; LANES]);

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::Float;
    /// `a + b`.
    fn add(self, a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a - b`.
    fn sub(self, a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a * b`.
    fn mul(self, a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a / b`.
    fn div(self, a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    /// `a` if `a > b`, else `b`: `b` also where either is NaN.
    fn max(self, a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a` if `a < b`, else `b`: `b` also where either is NaN.
    fn min(self, a: Self::Float, b: Self::Float) -> Self::Float;
    /// To the nearest integer, ties to even.
    fn round(self, v: Self::Float) -> Self::Float;
    /// `v * 2^n` for integral `n` in -160..=160, rounded once.
    fn scale(self, v: Self::Float, n: Self::Float) -> Self::Float;
    /// Exchanges lanes 0 and 1, 2 and 3, and so on.
    fn swap_pairs(self, v: Self::Float) -> Self::Float;
    /// The first `n` lanes of `v`, and `fill` in the others.
    fn keep_first(self, v: Self::Float, n: usize, fill: Self::Float) -> Self::Float;
    /// The sum of all lanes: lane `i` with `i + 8`, then with `i + 4`, `i + 2`, `i + 1`.
    fn sum(self, v: Self::Float) -> f32;
    /// The greatest lane, folded like [`sum`](Self::sum) with [`max`](Self::max).
    fn greatest(self, v: Self::Float) -> f32;

    /// From memory.
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::Float {
        // SAFETY: sixteen floats.
        unsafe { self.load_f32(from.as_ptr().cast()) }
    }

    /// From memory, converted from f16 bits. Exact.
    #[inline(always)]
    fn load_half(self, from: &[u16; LANES]) -> Self::Float {
        // SAFETY: sixteen halves.
        unsafe { self.load_f16(from.as_ptr().cast()) }
    }

    /// To memory.
    #[inline(always)]
    fn store(self, v: Self::Float, to: &mut [f32; LANES]) {
        // SAFETY: sixteen floats.
        unsafe { self.store_f32(v, to.as_mut_ptr().cast()) }
    }

    /// From up to sixteen elements; the other lanes are `fill`.
    #[inline(always)]
    fn load_part(self, from: &[f32], fill: f32) -> Self::Float {
        let mut whole = [fill; LANES];
        whole[..from.len()].copy_from_slice(from);
        self.load(&whole)
    }

    /// The first lanes to up to sixteen elements.
    #[inline(always)]
    fn store_part(self, v: Self::Float, to: &mut [f32]) {
        let mut whole = [0.0; LANES];
        self.store(v, &mut whole);
        to.copy_from_slice(&whole[..to.len()]);
    }
}

/// Operations on sixteen 32-bit integers, or the 64 bytes that they are.
pub(crate) trait IntLanes: Lanes {
    /// Sixteen integers.
    type Int: Copy;

    /// Activation rows that one register tile holds.
    const TILE: usize;
    /// Whether `dot_wide` takes codes with 128 added (as bytes without a sign).
    const WIDE_IS_OFFSET: bool;

    /// Sixteen integers from any address.
    ///
    /// # Safety
    /// 64 bytes can be read there.
    unsafe fn load_int(self, from: *const u8) -> Self::Int;
    /// Sixteen integers to any address.
    ///
    /// # Safety
    /// 64 bytes can be written there.
    unsafe fn store_int(self, v: Self::Int, to: *mut u8);
    /// Lane `r` of vector `g` holds bytes `4g..4g + 4` of row `r`.
    ///
    /// # Safety
    /// 16 bytes can be read in each row.
    unsafe fn chunk(self, rows: Rows) -> [Self::Int; 4];
    /// Lane `r` holds the first four bytes of row `r`.
    ///
    /// # Safety
    /// Four bytes can be read in each row.
    unsafe fn column(self, rows: Rows) -> Self::Int;

    /// `x` in every lane.
    fn splat_int(self, x: u32) -> Self::Int;
    /// Bits of both.
    fn and(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Bits of either.
    fn or(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Bits of one.
    fn xor(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// `a - b`, wrapping.
    fn sub_int(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Lower half of `a * b`.
    fn mul_int(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Shifts each lane left by `n < 32`.
    fn shl(self, v: Self::Int, n: u32) -> Self::Int;
    /// Shifts each lane right by `n < 32`, filling with zeros.
    fn shr(self, v: Self::Int, n: u32) -> Self::Int;
    /// `acc + Σ code · activation` over the four bytes of each lane, exact; codes are below 128,
    /// activations signed and not -128.
    fn dot(self, acc: Self::Int, codes: Self::Int, activations: Self::Int) -> Self::Int;
    /// The same with codes that use all eight bits: signed, or offset if `WIDE_IS_OFFSET`.
    fn dot_wide(self, acc: Self::Int, codes: Self::Int, activations: Self::Int) -> Self::Int;
    /// Each lane, a signed integer, as a float, rounded to nearest.
    fn to_float(self, v: Self::Int) -> Self::Float;
    /// The f16 in the lower half of each lane. Exact.
    fn half_to_float(self, v: Self::Int) -> Self::Float;
}

/// Work written for any level.
pub(crate) trait Kernel {
    /// What it gives back.
    type Output;

    /// Does it. Implementations are `#[inline(always)]`, and so is all they call with `lanes`:
    /// only then are they compiled for the level's instructions. One that needs no integers says
    /// `L: Lanes`.
    fn run<L: IntLanes>(self, lanes: L) -> Self::Output;
}

/// Runs `kernel` with the instructions that `isa` proves.
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa.level() {
        Level::Portable => kernel.run(portable::Portable),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level is made only after all these instructions were found.
        Level::Avx2 => unsafe { avx2::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx512 => unsafe { avx512::run(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        Level::Avx2 | Level::Avx512 => unreachable!("no Isa of this level exists here"),
    }
}

/// Asks for the cache line at `address`, which need not be readable.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is allowed; SSE is in the baseline of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
