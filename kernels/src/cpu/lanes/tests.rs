//! Every operation gives equal bits at every level.

use super::{IntLanes, Kernel, LANES, Lanes, Rows, dispatch};
use crate::isa::Isa;

/// A NaN's payload is the one thing the levels may differ in.
fn bits_of(x: f32) -> u32 {
    if x.is_nan() { u32::MAX } else { x.to_bits() }
}

#[inline(always)]
fn push<L: Lanes>(lanes: L, v: L::Float, bits: &mut Vec<u32>) {
    let mut out = [0.0; LANES];
    lanes.store(v, &mut out);
    bits.extend(out.map(bits_of));
}

#[inline(always)]
fn push_int<L: IntLanes>(lanes: L, v: L::Int, bits: &mut Vec<u32>) {
    let mut out = [0_u32; LANES];
    // SAFETY: sixteen integers.
    unsafe { lanes.store_int(v, out.as_mut_ptr().cast()) };
    bits.extend(out);
}

/// Every operation on floats on the same operands; results as bits.
#[derive(Clone, Copy)]
struct OnFloats<'a>(&'a [f32; LANES], &'a [f32; LANES], &'a [f32; LANES]);

impl Kernel for OnFloats<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> Vec<u32> {
        let (a, b, c) = (lanes.load(self.0), lanes.load(self.1), lanes.load(self.2));
        let mut bits = vec![lanes.sum(a).to_bits(), lanes.greatest(a).to_bits()];
        let mut halves = [0; LANES];
        lanes.store_half(a, &mut halves);
        let n = lanes.round(lanes.max(lanes.min(b, lanes.splat(150.0)), lanes.splat(-150.0)));
        for v in [
            lanes.splat(self.0[3]),
            lanes.load_half(&halves),
            lanes.add(a, b),
            lanes.sub(a, b),
            lanes.mul(a, b),
            lanes.div(a, b),
            lanes.fma(a, b, c),
            lanes.max(a, b),
            lanes.min(a, b),
            lanes.round(a),
            lanes.scale(c, n),
            lanes.swap_pairs(a),
            lanes.keep_first(a, 0, b),
            lanes.keep_first(a, 5, b),
            lanes.keep_first(a, 16, b),
            lanes.load_part(&self.0[..7], 2.5),
        ] {
            push(lanes, v, &mut bits);
        }
        let mut part = [0.0; 9];
        lanes.store_part(a, &mut part);
        bits.extend(part.map(bits_of));
        bits
    }
}

/// Row length of [`OnBytes`]: odd, so that rows start at any address.
const STRIDE: usize = 19;

/// Every operation on integers and bytes on the same operands; results as bits.
#[derive(Clone, Copy)]
struct OnBytes<'a>(&'a [u8; LANES * STRIDE]);

impl Kernel for OnBytes<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<L: IntLanes>(self, lanes: L) -> Vec<u32> {
        let mut bits = Vec::new();
        let start = self.0.as_ptr();
        let rows = Rows { start, stride: STRIDE };
        // SAFETY: all places are inside the bytes, the last ones being 195..259 of 304 and, of each
        // row of 19, 3..19.
        let (a, b, acc, floats, chunk, column) = unsafe {
            (
                lanes.load_int(start.add(1)),
                lanes.load_int(start.add(66)),
                lanes.load_int(start.add(131)),
                [
                    lanes.load_f32(start.add(195)),
                    lanes.load_f16(start.add(5)),
                    lanes.load_bf16(start.add(7)),
                ],
                lanes.chunk(rows.add(3)),
                lanes.column(rows.add(15)),
            )
        };
        for v in floats {
            push(lanes, v, &mut bits);
        }
        for v in chunk {
            push_int(lanes, v, &mut bits);
        }
        let codes = lanes.and(a, lanes.splat_int(0x7f7f_7f7f));
        // No activation is -128: all their lowest bits are set.
        let x = lanes.or(b, lanes.splat_int(0x0101_0101));
        for v in [
            column,
            lanes.splat_int(u32::from(self.0[0])),
            lanes.and(a, b),
            lanes.or(a, b),
            lanes.xor(a, b),
            lanes.sub_int(a, b),
            lanes.mul_int(a, b),
            lanes.shl(a, 0),
            lanes.shl(a, 13),
            lanes.shl(a, 31),
            lanes.shr(a, 0),
            lanes.shr(a, 13),
            lanes.shr(a, 31),
            lanes.dot(acc, codes, x),
            signed_dot(lanes, acc, a, x),
        ] {
            push_int(lanes, v, &mut bits);
        }
        push(lanes, lanes.to_float(a), &mut bits);
        push(lanes, lanes.half_to_float(a), &mut bits);
        bits
    }
}

/// `acc` and the products of signed codes: what `dot_wide` is for.
#[inline(always)]
fn signed_dot<L: IntLanes>(lanes: L, acc: L::Int, codes: L::Int, x: L::Int) -> L::Int {
    if !L::WIDE_IS_OFFSET {
        return lanes.dot_wide(acc, codes, x);
    }
    let sum = lanes.dot(lanes.splat_int(0), lanes.splat_int(0x0101_0101), x);
    let acc = lanes.sub_int(acc, lanes.shl(sum, 7));
    lanes.dot_wide(acc, lanes.xor(codes, lanes.splat_int(0x8080_8080)), x)
}

fn assert_equal<K: Kernel<Output = Vec<u32>> + Copy>(kernel: K, operands: impl Fn() -> String) {
    let expected = dispatch(Isa::PORTABLE, kernel);
    for isa in Isa::available() {
        assert_eq!(dispatch(isa, kernel), expected, "{}: {}", isa.name(), operands());
    }
}

/// A source of arbitrary words.
fn words() -> impl FnMut() -> u32 {
    let mut state = 1_u32;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    }
}

#[test]
fn all_levels_give_equal_bits() {
    let mut next = words();
    for round in 0..2000 {
        let mut operand = || {
            [(); LANES].map(|()| match (round % 3, next()) {
                (0, bits) => f32::from_bits(bits),
                (_, bits) => f32::from_bits(bits & 0x87ff_ffff | 0x3c00_0000) * 20.0,
            })
        };
        let (a, b, c) = (operand(), operand(), operand());
        if round % 3 == 0 && a.iter().any(|x| x.is_nan()) {
            continue;
        }
        assert_equal(OnFloats(&a, &b, &c), || format!("{a:?} {b:?} {c:?}"));
    }
}

#[test]
fn all_levels_give_equal_bits_from_integers() {
    let mut next = words();
    for _ in 0..2000 {
        // The upper bits of this generator are the more random ones.
        let bytes = [(); LANES * STRIDE].map(|()| next().to_be_bytes()[0]);
        assert_equal(OnBytes(&bytes), || format!("{bytes:?}"));
    }
    // Extremes: codes of -128 and 127 with activations of -127 and 127, and all zero.
    for [code, x] in [[0x80, 0x81], [0x80, 0x7f], [0x7f, 0x81], [0xff, 0x7f], [0, 0]] {
        let mut bytes = [x; LANES * STRIDE];
        bytes[1..65].fill(code);
        assert_equal(OnBytes(&bytes), || format!("{code:#x} {x:#x}"));
    }
}
