//! The exponential function on sixteen lanes, and two made of it.

use super::lanes::Lanes;

/// log2(e).
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has so few bits that its products with small integers are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -0.000_212_194_44;
/// Coefficients of `r^2` to `r^6` of the polynomial that comes nearest to `exp(r)` on
/// `|r| <= ln(2) / 2` by relative error, with those of 1 and `r` held at 1. Found by weighted least
/// squares on Chebyshev nodes (Lawson's algorithm); before rounding its error is 3.1e-9.
const COEFFICIENTS: [f32; 5] =
    [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_717, 0.001_381_459_9];
/// Below this the result rounds to 0, above the other to infinity.
const ARGUMENT_MIN: f32 = -105.0;
const ARGUMENT_MAX: f32 = 90.0;

/// `exp(x)` per lane: `2^n * p(r)` with `n = round(x / ln 2)` and `r = x - n ln 2`.
///
/// Within 8e-8 (`ERROR_MAX`) of the true value, subnormal results within one of their steps; 1 at
/// 0, 0 at -Inf, Inf at Inf, NaN at NaN.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(lanes: L, x: L::Float) -> L::Float {
    // `x` as second operand stays if it is NaN.
    let x = lanes.min(lanes.splat(ARGUMENT_MAX), x);
    let x = lanes.max(lanes.splat(ARGUMENT_MIN), x);
    let n = lanes.round(lanes.mul(x, lanes.splat(LOG2_E)));
    let r = lanes.fma(n, lanes.splat(-LN_2_HIGH), x);
    let r = lanes.fma(n, lanes.splat(-LN_2_LOW), r);
    let mut p = lanes.splat(COEFFICIENTS[4]);
    p = lanes.fma(p, r, lanes.splat(COEFFICIENTS[3]));
    p = lanes.fma(p, r, lanes.splat(COEFFICIENTS[2]));
    p = lanes.fma(p, r, lanes.splat(COEFFICIENTS[1]));
    p = lanes.fma(p, r, lanes.splat(COEFFICIENTS[0]));
    p = lanes.fma(p, r, lanes.splat(1.0));
    p = lanes.fma(p, r, lanes.splat(1.0));
    lanes.scale(p, n)
}

/// The logistic function `1 / (1 + exp(-x))`: 0 at -Inf, 1 at Inf, NaN at NaN.
#[inline(always)]
pub(crate) fn sigmoid<L: Lanes>(lanes: L, x: L::Float) -> L::Float {
    let one = lanes.splat(1.0);
    lanes.div(one, lanes.add(one, exp(lanes, lanes.sub(lanes.splat(0.0), x))))
}

/// `x / (1 + exp(-x))`. NaN at -Inf: nothing is hidden.
#[inline(always)]
pub(crate) fn silu<L: Lanes>(lanes: L, x: L::Float) -> L::Float {
    lanes.div(x, lanes.add(lanes.splat(1.0), exp(lanes, lanes.sub(lanes.splat(0.0), x))))
}

/// Largest relative error of [`exp`] where the result is normal: half a step (6e-8) for the last
/// rounding, a sixth more for the roundings before it, and the polynomial's own. The test tries one
/// argument in 64 of the whole range.
#[cfg(test)]
const ERROR_MAX: f64 = 8.0e-8;

#[cfg(test)]
mod tests {
    use super::{ERROR_MAX, exp};
    use crate::cpu::lanes::{Kernel, LANES, Lanes, dispatch};
    use crate::isa::Isa;

    struct Exp([f32; LANES]);

    impl Kernel for Exp {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            lanes.store(exp(lanes, lanes.load(&self.0)), &mut out);
            out
        }
    }

    #[test]
    fn the_error_stays_within_its_bound() {
        let isa = Isa::detect();
        let last = f32::to_bits(90.0);
        for sign in [0, 1_u32 << 31] {
            for start in (0..last).step_by(LANES * 64) {
                let mut x = [0.0; LANES];
                for (lane, x) in (0_u32..).zip(&mut x) {
                    *x = f32::from_bits(sign | (start + 64 * lane));
                }
                for (x, y) in x.into_iter().zip(dispatch(isa, Exp(x))) {
                    let exact = f64::from(x).exp();
                    if exact > f64::from(f32::MAX) {
                        assert!(y >= f32::MAX, "exp({x}) is {y}");
                        continue;
                    }
                    let step = f64::from(f32::from_bits(1));
                    let bound = (exact * ERROR_MAX).max(step);
                    assert!((f64::from(y) - exact).abs() <= bound, "exp({x}) is {y}, not {exact}");
                }
            }
        }
    }

    #[test]
    fn all_levels_give_equal_bits_and_keep_what_is_not_finite() {
        let mut x = [0.0; LANES];
        x[..8].copy_from_slice(&[
            f32::NEG_INFINITY,
            f32::INFINITY,
            -100.0,
            89.5,
            -0.0,
            1.0e-30,
            -87.5,
            -103.9,
        ]);
        for isa in Isa::available() {
            let y = dispatch(isa, Exp(x));
            assert_eq!(y[..2], [0.0, f32::INFINITY]);
            assert_eq!(y[4], 1.0);
            assert_eq!(y.map(f32::to_bits), dispatch(Isa::PORTABLE, Exp(x)).map(f32::to_bits));
            assert!(dispatch(isa, Exp([f32::NAN; LANES])).iter().all(|y| y.is_nan()));
        }
    }
}
