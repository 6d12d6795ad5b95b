//! Finds values that may not be there: NaN and infinities.

use super::lanes::{Kernel, LANES, Lanes, dispatch};
use crate::isa::Isa;

/// Elements looked at between two decisions to go on.
const STRIDE: usize = 64 * LANES;

/// Index of the first NaN or infinity in `x`, if there is one.
#[must_use]
pub fn nonfinite_scan(isa: Isa, x: &[f32]) -> Option<usize> {
    let stride = dispatch(isa, Scan(x))?;
    let start = stride * STRIDE;
    x[start..].iter().position(|x| !x.is_finite()).map(|place| start + place)
}

struct Scan<'a>(&'a [f32]);

impl Kernel for Scan<'_> {
    /// Index of the first stride with such a value.
    type Output = Option<usize>;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> Option<usize> {
        let zero = lanes.splat(0.0);
        for (index, stride) in self.0.chunks(STRIDE).enumerate() {
            let (chunks, rest) = stride.as_chunks::<LANES>();
            // x * 0 is 0 for what is finite and NaN for the rest; a sum keeps a NaN.
            let mut seen = zero;
            for chunk in chunks {
                seen = lanes.fma(lanes.load(chunk), zero, seen);
            }
            if lanes.sum(seen).is_nan() || rest.iter().any(|x| !x.is_finite()) {
                return Some(index);
            }
        }
        None
    }
}
