//! Does `cpu::nonfinite_scan` find the first of what may not be there, and nothing else?

mod common;

use common::Random;
use strata_kernels::cpu::nonfinite_scan;
use strata_kernels::isa::Isa;
use strata_kernels::reference;

#[test]
fn the_first_is_found_wherever_it_is() {
    for isa in Isa::available() {
        for n in [0, 1, 15, 16, 17, 1023, 1024, 1025, 5000] {
            let mut random = Random(n as u64 + 1);
            let mut x = random.values(n, f32::MAX / 4.0);
            if let Some(x) = x.first_mut() {
                *x = f32::from_bits(1);
            }
            assert_eq!(nonfinite_scan(isa, &x), None);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for place in [0, n / 3, n / 2, n.saturating_sub(1)] {
                    let mut x = x.clone();
                    if n > 0 {
                        x[place] = bad;
                        x[n - 1] = f32::NAN;
                    }
                    let expected = reference::nonfinite_scan::nonfinite_scan(&x);
                    assert_eq!(nonfinite_scan(isa, &x), expected, "{bad} at {place} of {n}");
                }
            }
        }
    }
}
