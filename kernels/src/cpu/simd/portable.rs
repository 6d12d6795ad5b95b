//! Arrays of sixteen, which the compiler maps to what the machine has.

use std::array::from_fn;

use half::{bf16, f16};

use super::{Rows, Simd};

/// Needs no proof.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type Int = [u32; 16];
type Float = [f32; 16];

#[inline(always)]
fn zip(a: Int, b: Int, f: impl Fn(u32, u32) -> u32) -> Int {
    from_fn(|lane| f(a[lane], b[lane]))
}

impl Simd for Portable {
    type Int = Int;
    type Float = Float;

    const TILE: usize = 1;
    const WIDE_IS_OFFSET: bool = false;

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> Int {
        // SAFETY: 64 bytes are readable by the caller's word.
        unsafe { from.cast::<[u32; 16]>().read_unaligned() }.map(u32::from_le)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8, value: Int) {
        // SAFETY: 64 bytes are writable by the caller's word.
        unsafe { to.cast::<[u32; 16]>().write_unaligned(value.map(u32::to_le)) }
    }

    #[inline(always)]
    unsafe fn load_f(self, from: *const f32) -> Float {
        // SAFETY: 16 floats are readable by the caller's word.
        unsafe { from.cast::<[f32; 16]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_f(self, to: *mut f32, value: Float) {
        // SAFETY: 16 floats are writable by the caller's word.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Float {
        // SAFETY: 32 bytes are readable by the caller's word.
        let bits = unsafe { from.cast::<[u16; 16]>().read_unaligned() };
        bits.map(|bits| f16::from_bits(u16::from_le(bits)).to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> Float {
        // SAFETY: 32 bytes are readable by the caller's word.
        let bits = unsafe { from.cast::<[u16; 16]>().read_unaligned() };
        bits.map(|bits| bf16::from_bits(u16::from_le(bits)).to_f32())
    }

    #[inline(always)]
    unsafe fn chunk(self, rows: Rows) -> [Int; 4] {
        // SAFETY: 16 bytes of each row are readable by the caller's word.
        from_fn(|group| unsafe { self.column(rows.add(4 * group)) })
    }

    #[inline(always)]
    unsafe fn column(self, rows: Rows) -> Int {
        // SAFETY: four bytes of each row are readable by the caller's word.
        from_fn(|r| u32::from_le(unsafe { rows.row(r).cast::<u32>().read_unaligned() }))
    }

    #[inline(always)]
    fn splat(self, value: u32) -> Int {
        [value; 16]
    }

    #[inline(always)]
    fn and(self, a: Int, b: Int) -> Int {
        zip(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, a: Int, b: Int) -> Int {
        zip(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn xor(self, a: Int, b: Int) -> Int {
        zip(a, b, |a, b| a ^ b)
    }

    #[inline(always)]
    fn sub(self, a: Int, b: Int) -> Int {
        zip(a, b, u32::wrapping_sub)
    }

    #[inline(always)]
    fn mul(self, a: Int, b: Int) -> Int {
        zip(a, b, u32::wrapping_mul)
    }

    #[inline(always)]
    fn shl(self, value: Int, count: u32) -> Int {
        value.map(|lane| lane << count)
    }

    #[inline(always)]
    fn shr(self, value: Int, count: u32) -> Int {
        value.map(|lane| lane >> count)
    }

    #[inline(always)]
    fn dot(self, acc: Int, codes: Int, activations: Int) -> Int {
        self.dot_wide(acc, codes, activations)
    }

    #[inline(always)]
    fn dot_wide(self, acc: Int, codes: Int, activations: Int) -> Int {
        // Byte `j` of a lane, with its sign.
        let byte = |lane: u32, j: u32| (lane << (24 - 8 * j)).cast_signed() >> 24;
        from_fn(|lane| {
            let (code, activation) = (codes[lane], activations[lane]);
            let dot: i32 = (0..4).map(|j| byte(code, j) * byte(activation, j)).sum();
            acc[lane].wrapping_add(dot.cast_unsigned())
        })
    }

    #[inline(always)]
    fn splat_f(self, value: f32) -> Float {
        [value; 16]
    }

    #[inline(always)]
    fn mul_f(self, a: Float, b: Float) -> Float {
        from_fn(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    fn fma(self, a: Float, b: Float, c: Float) -> Float {
        from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    fn sum(self, mut a: Float) -> f32 {
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                a[lane] += a[lane + half];
            }
        }
        a[0]
    }

    #[inline(always)]
    fn to_float(self, value: Int) -> Float {
        // Sums of codes are far below 2^24, so this is exact.
        value.map(|lane| lane.cast_signed() as f32)
    }

    #[inline(always)]
    fn half_to_float(self, value: Int) -> Float {
        value.map(|lane| f16::from_bits((lane & 0xffff) as u16).to_f32())
    }
}
