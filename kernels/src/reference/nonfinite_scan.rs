//! The first NaN or infinity.

/// See `cpu::nonfinite_scan`.
#[must_use]
pub fn nonfinite_scan(x: &[f32]) -> Option<usize> {
    x.iter().position(|x| !x.is_finite())
}
