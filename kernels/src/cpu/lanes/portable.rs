//! Arrays of sixteen, which the compiler maps to what the machine has.

use half::{bf16, f16};

use super::{IntLanes, LANES, Lanes, Rows};

/// The level every machine has; it needs no proof. `f32::mul_add` is one instruction on AArch64,
/// and a slow but equal library call on an x86 without FMA.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portable;

type Float = [f32; LANES];
type Int = [u32; LANES];

/// An array of what the expression gives for each lane. Not `from_fn`: its closures are functions
/// of their own, which the compiler need not inline.
macro_rules! lanes {
    ($lane:ident => $value:expr) => {{
        let mut result = [Default::default(); LANES];
        for $lane in 0..LANES {
            result[$lane] = $value;
        }
        result
    }};
}

/// Methods that compute each lane `i` by itself.
macro_rules! lanewise {
    ($i:ident: $($name:ident($($arg:ident: $type:ty),*) -> $result:ty = $value:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: $type),*) -> $result {
            lanes!($i => $value)
        }
    )*};
}

/// Lane `i` with `i + 8`, then `i + 4`, `i + 2`, `i + 1`.
macro_rules! fold {
    ($v:ident, $op:expr) => {{
        let mut v = $v;
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                v[lane] = $op(v[lane], v[lane + half]);
            }
        }
        v[0]
    }};
}

#[inline(always)]
fn sum_of(a: f32, b: f32) -> f32 {
    a + b
}

#[inline(always)]
fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// `v * 2^n`, in two steps since 2^n itself may not be a normal number. The first is exact.
#[inline(always)]
fn scaled(v: f32, n: f32) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "integral and small")]
    let n = n as i32;
    let first = n >> 1;
    v * power_of_two(first) * power_of_two(n - first)
}

/// `2^n` for `n` in -126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(n.wrapping_add(127).cast_unsigned() << 23)
}

/// `acc` and the products of four signed bytes.
#[inline(always)]
fn dot_of_four(acc: u32, codes: u32, activations: u32) -> u32 {
    let mut sum = acc;
    for at in [24, 16, 8, 0] {
        // A byte of each, with its sign.
        let code = (codes << at).cast_signed() >> 24;
        let activation = (activations << at).cast_signed() >> 24;
        sum = sum.wrapping_add((code * activation).cast_unsigned());
    }
    sum
}

impl Lanes for Portable {
    type Float = Float;

    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn load_f32(self, from: *const u8) -> Float {
        // SAFETY: 64 bytes are readable by the caller's word.
        unsafe { from.cast::<Float>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_f16(self, from: *const u8) -> Float {
        // SAFETY: 32 bytes are readable by the caller's word.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        lanes!(i => f16::from_bits(bits[i]).to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u8) -> Float {
        // SAFETY: 32 bytes are readable by the caller's word.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        lanes!(i => bf16::from_bits(bits[i]).to_f32())
    }

    #[inline(always)]
    unsafe fn store_f32(self, v: Float, to: *mut u8) {
        // SAFETY: 64 bytes are writable by the caller's word.
        unsafe { to.cast::<Float>().write_unaligned(v) }
    }

    #[inline(always)]
    fn store_half(self, v: Float, to: &mut [u16; LANES]) {
        *to = lanes!(i => f16::from_f32(v[i]).to_bits());
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Float {
        [x; LANES]
    }

    lanewise! { i:
        add(a: Float, b: Float) -> Float = a[i] + b[i];
        sub(a: Float, b: Float) -> Float = a[i] - b[i];
        mul(a: Float, b: Float) -> Float = a[i] * b[i];
        div(a: Float, b: Float) -> Float = a[i] / b[i];
        fma(a: Float, b: Float, c: Float) -> Float = a[i].mul_add(b[i], c[i]);
        max(a: Float, b: Float) -> Float = greater(a[i], b[i]);
        min(a: Float, b: Float) -> Float = if a[i] < b[i] { a[i] } else { b[i] };
        round(v: Float) -> Float = v[i].round_ties_even();
        scale(v: Float, n: Float) -> Float = scaled(v[i], n[i]);
        swap_pairs(v: Float) -> Float = v[i ^ 1];
        keep_first(v: Float, n: usize, fill: Float) -> Float = if i < n { v[i] } else { fill[i] };
    }

    #[inline(always)]
    fn sum(self, v: Float) -> f32 {
        fold!(v, sum_of)
    }

    #[inline(always)]
    fn greatest(self, v: Float) -> f32 {
        fold!(v, greater)
    }
}

impl IntLanes for Portable {
    type Int = Int;

    const TILE: usize = 1;
    const WIDE_IS_OFFSET: bool = false;

    #[inline(always)]
    unsafe fn load_int(self, from: *const u8) -> Int {
        // SAFETY: 64 bytes are readable by the caller's word.
        unsafe { from.cast::<Int>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_int(self, v: Int, to: *mut u8) {
        // SAFETY: 64 bytes are writable by the caller's word.
        unsafe { to.cast::<Int>().write_unaligned(v) }
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
        lanes!(r => unsafe { rows.row(r).cast::<u32>().read_unaligned() })
    }

    #[inline(always)]
    fn splat_int(self, x: u32) -> Int {
        [x; LANES]
    }

    lanewise! { i:
        and(a: Int, b: Int) -> Int = a[i] & b[i];
        or(a: Int, b: Int) -> Int = a[i] | b[i];
        xor(a: Int, b: Int) -> Int = a[i] ^ b[i];
        sub_int(a: Int, b: Int) -> Int = a[i].wrapping_sub(b[i]);
        mul_int(a: Int, b: Int) -> Int = a[i].wrapping_mul(b[i]);
        shl(v: Int, n: u32) -> Int = v[i] << n;
        shr(v: Int, n: u32) -> Int = v[i] >> n;
        dot(acc: Int, codes: Int, activations: Int) -> Int =
            dot_of_four(acc[i], codes[i], activations[i]);
        dot_wide(acc: Int, codes: Int, activations: Int) -> Int =
            dot_of_four(acc[i], codes[i], activations[i]);
        // Sums of codes are far below 2^24, so there this is exact.
        to_float(v: Int) -> Float = v[i].cast_signed() as f32;
        half_to_float(v: Int) -> Float = f16::from_bits((v[i] & 0xffff) as u16).to_f32();
    }
}
