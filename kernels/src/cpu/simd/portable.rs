//! Arrays of sixteen, which the compiler maps to what the machine has.

use half::{bf16, f16};

use super::{Rows, Simd};

/// Needs no proof.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type Int = [u32; 16];
type Float = [f32; 16];

/// An array of what the expression gives for each lane. Not `from_fn`: its closures are functions
/// of their own, which the compiler need not inline.
macro_rules! lanes {
    ($lane:ident => $value:expr) => {{
        let mut result = [Default::default(); 16];
        for $lane in 0..16 {
            result[$lane] = $value;
        }
        result
    }};
}

impl Simd for Portable {
    type Int = Int;
    type Float = Float;

    const TILE: usize = 1;
    const WIDE_IS_OFFSET: bool = false;

    #[inline(always)]
    unsafe fn load(self, from: *const u8) -> Int {
        // SAFETY: 64 bytes are readable by the caller's word.
        let words = unsafe { from.cast::<[u32; 16]>().read_unaligned() };
        lanes!(lane => u32::from_le(words[lane]))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8, value: Int) {
        // SAFETY: 64 bytes are writable by the caller's word.
        unsafe { to.cast::<[u32; 16]>().write_unaligned(lanes!(lane => value[lane].to_le())) }
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
        lanes!(lane => f16::from_bits(u16::from_le(bits[lane])).to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> Float {
        // SAFETY: 32 bytes are readable by the caller's word.
        let bits = unsafe { from.cast::<[u16; 16]>().read_unaligned() };
        lanes!(lane => bf16::from_bits(u16::from_le(bits[lane])).to_f32())
    }

    #[inline(always)]
    unsafe fn chunk(self, rows: Rows) -> [Int; 4] {
        // SAFETY: 16 bytes of each row are readable by the caller's word.
        unsafe {
            [
                self.column(rows),
                self.column(rows.add(4)),
                self.column(rows.add(8)),
                self.column(rows.add(12)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn column(self, rows: Rows) -> Int {
        // SAFETY: four bytes of each row are readable by the caller's word.
        lanes!(r => u32::from_le(unsafe { rows.row(r).cast::<u32>().read_unaligned() }))
    }

    #[inline(always)]
    fn splat(self, value: u32) -> Int {
        [value; 16]
    }

    #[inline(always)]
    fn and(self, a: Int, b: Int) -> Int {
        lanes!(lane => a[lane] & b[lane])
    }

    #[inline(always)]
    fn or(self, a: Int, b: Int) -> Int {
        lanes!(lane => a[lane] | b[lane])
    }

    #[inline(always)]
    fn xor(self, a: Int, b: Int) -> Int {
        lanes!(lane => a[lane] ^ b[lane])
    }

    #[inline(always)]
    fn sub(self, a: Int, b: Int) -> Int {
        lanes!(lane => a[lane].wrapping_sub(b[lane]))
    }

    #[inline(always)]
    fn mul(self, a: Int, b: Int) -> Int {
        lanes!(lane => a[lane].wrapping_mul(b[lane]))
    }

    #[inline(always)]
    fn shl(self, value: Int, count: u32) -> Int {
        lanes!(lane => value[lane] << count)
    }

    #[inline(always)]
    fn shr(self, value: Int, count: u32) -> Int {
        lanes!(lane => value[lane] >> count)
    }

    #[inline(always)]
    fn dot(self, acc: Int, codes: Int, activations: Int) -> Int {
        self.dot_wide(acc, codes, activations)
    }

    #[inline(always)]
    fn dot_wide(self, acc: Int, codes: Int, activations: Int) -> Int {
        let mut result = acc;
        for (lane, sum) in result.iter_mut().enumerate() {
            for at in [24, 16, 8, 0] {
                // A byte of each, with its sign.
                let code = (codes[lane] << at).cast_signed() >> 24;
                let activation = (activations[lane] << at).cast_signed() >> 24;
                *sum = sum.wrapping_add((code * activation).cast_unsigned());
            }
        }
        result
    }

    #[inline(always)]
    fn splat_f(self, value: f32) -> Float {
        [value; 16]
    }

    #[inline(always)]
    fn mul_f(self, a: Float, b: Float) -> Float {
        lanes!(lane => a[lane] * b[lane])
    }

    #[inline(always)]
    fn fma(self, a: Float, b: Float, c: Float) -> Float {
        lanes!(lane => a[lane].mul_add(b[lane], c[lane]))
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
        lanes!(lane => value[lane].cast_signed() as f32)
    }

    #[inline(always)]
    fn half_to_float(self, value: Int) -> Float {
        lanes!(lane => f16::from_bits((value[lane] & 0xffff) as u16).to_f32())
    }
}
