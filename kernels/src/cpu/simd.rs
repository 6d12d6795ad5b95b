//! Sixteen 32-bit lanes, whatever the machine calls them.
//!
//! A kernel is written once, over [`Simd`]; [`dispatch`] compiles it for each level and calls the
//! one that an [`Isa`] proves. Every operation here gives the same bits at every level, so kernels
//! that use only these are equal on all machines.
//!
//! A kernel's body and all it calls must be `#[inline(always)]`: only what is inlined into the
//! function that enables the instructions is compiled with them.

use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::{Avx2, sum_halves};
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use portable::Portable;

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

/// A level's vectors of sixteen lanes. A value is proof that the level's instructions exist.
pub(crate) trait Simd: Copy + Send + Sync {
    /// Sixteen 32-bit integers, or 64 bytes.
    type Int: Copy;
    /// Sixteen `f32`.
    type Float: Copy;

    /// Activation rows that one register tile holds.
    const TILE: usize;
    /// Whether `dot_wide` takes codes with 128 added (as bytes without a sign).
    const WIDE_IS_OFFSET: bool;

    /// # Safety
    /// 64 bytes can be read there.
    unsafe fn load(self, from: *const u8) -> Self::Int;
    /// # Safety
    /// 64 bytes can be written there.
    unsafe fn store(self, to: *mut u8, value: Self::Int);
    /// # Safety
    /// 16 floats can be read there.
    unsafe fn load_f(self, from: *const f32) -> Self::Float;
    /// # Safety
    /// 16 floats can be written there.
    unsafe fn store_f(self, to: *mut f32, value: Self::Float);
    /// Sixteen half-precision numbers.
    ///
    /// # Safety
    /// 32 bytes can be read there.
    unsafe fn load_f16(self, from: *const u8) -> Self::Float;
    /// Sixteen upper halves of `f32`.
    ///
    /// # Safety
    /// 32 bytes can be read there.
    unsafe fn load_bf16(self, from: *const u8) -> Self::Float;
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

    fn splat(self, value: u32) -> Self::Int;
    fn and(self, a: Self::Int, b: Self::Int) -> Self::Int;
    fn or(self, a: Self::Int, b: Self::Int) -> Self::Int;
    fn xor(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Wrapping difference of 32-bit lanes.
    fn sub(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Lower half of the product of 32-bit lanes.
    fn mul(self, a: Self::Int, b: Self::Int) -> Self::Int;
    /// Shifts each 32-bit lane left.
    fn shl(self, value: Self::Int, count: u32) -> Self::Int;
    /// Shifts each 32-bit lane right, filling with zeros.
    fn shr(self, value: Self::Int, count: u32) -> Self::Int;
    /// `acc + Σ code · activation` over the four bytes of each lane, exact; codes are below 128,
    /// activations signed and not -128.
    fn dot(self, acc: Self::Int, codes: Self::Int, activations: Self::Int) -> Self::Int;
    /// The same with codes that use all eight bits: signed, or offset if `WIDE_IS_OFFSET`.
    fn dot_wide(self, acc: Self::Int, codes: Self::Int, activations: Self::Int) -> Self::Int;

    fn splat_f(self, value: f32) -> Self::Float;
    fn mul_f(self, a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a * b + c` with one rounding.
    fn fma(self, a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    /// Sum of the lanes: lane `i` and `i + 8`, then `i + 4`, then `i + 2`, then `i + 1`.
    fn sum(self, a: Self::Float) -> f32;
    /// Each lane, a signed integer, as a float.
    fn to_float(self, value: Self::Int) -> Self::Float;
    /// The half-precision number in the lower half of each lane.
    fn half_to_float(self, value: Self::Int) -> Self::Float;
}

/// A computation written over [`Simd`].
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// The computation; implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs a kernel compiled for the level of `isa`.
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    match isa.level() {
        // SAFETY: an `Isa` of this level is made only after all these instructions were found.
        Level::Avx512 => return unsafe { with_avx512(kernel) },
        // SAFETY: as above.
        Level::Avx2 => return unsafe { with_avx2(kernel) },
        Level::Portable => {}
    }
    let _ = isa;
    kernel.run(Portable)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function enables them.
    kernel.run(unsafe { Avx512::assume() })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function enables them.
    kernel.run(unsafe { Avx2::assume() })
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
