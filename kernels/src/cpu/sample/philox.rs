//! The generator: Philox4x32-10, a function from a counter and a key to four random words.
//!
//! # Source
//!
//! Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The test
//! uses the known answers of the authors' Random123 library.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// High and low word of the product.
fn wide_product(a: u32, b: u32) -> [u32; 2] {
    let product = u64::from(a) * u64::from(b);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of 64 bits")]
    [(product >> 32) as u32, product as u32]
}

/// Four random words.
#[must_use]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let [high_0, low_0] = wide_product(MULTIPLIERS[0], counter[0]);
        let [high_1, low_1] = wide_product(MULTIPLIERS[1], counter[2]);
        counter = [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// The number in `[0, 1)` that belongs to a draw: the upper 53 of the first 64 bits. The seed is
/// the key; position and choice are the counter's first two words.
#[must_use]
pub fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of 64 bits")]
    let key = [seed as u32, (seed >> 32) as u32];
    let words = philox4x32([position, choice, 0, 0], key);
    let bits = (u64::from(words[0]) << 32 | u64::from(words[1])) >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit exactly")]
    let whole = bits as f64;
    whole / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::{philox4x32, uniform};

    #[test]
    fn known_answers() {
        let ones = u32::MAX;
        for (counter, key, expected) in [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([ones; 4], [ones; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ] {
            assert_eq!(philox4x32(counter, key), expected);
        }
    }

    #[test]
    fn each_part_of_the_key_matters_and_numbers_stay_below_one() {
        let base = uniform(1, 2, 3);
        assert_eq!(uniform(1, 2, 3), base);
        for other in [uniform(2, 2, 3), uniform(1 << 40, 2, 3), uniform(1, 3, 3), uniform(1, 2, 4)]
        {
            assert_ne!(other, base);
        }
        let mean = (0..10_000).map(|position| uniform(7, 0, position)).sum::<f64>() / 10_000.0;
        assert!((0..10_000).all(|position| (0.0..1.0).contains(&uniform(7, 0, position))));
        // Six standard deviations of the mean of 10,000 numbers, sqrt(1 / 12) / 100 each.
        assert!((mean - 0.5).abs() < 0.0174, "{mean}");
    }
}
