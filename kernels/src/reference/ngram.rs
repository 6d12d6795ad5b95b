//! Hashes of the last tokens, as rows of an embedding table.
//!
//! With multipliers `mu` and `prev_s` the token `s` places before: order `m` has the hash
//! `h_m = token * mu_0 ^ prev_1 * mu_1 ^ … ^ prev_(m-1) * mu_(m-1)` of 64-bit products, and each of
//! its heads `j` reads row `h_m mod size_j + offset_j`. `prev_s` is EOS if any of the tokens one to
//! `s` places before is EOS, so that nothing reaches over the end of a text; the token itself may
//! be EOS and does not cut its own context.
//!
//! Source: the n-gram embedding of `qwen4_exp`; the constants are in the weight file.

use thiserror::Error;

/// Constants that describe no table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NgramError {
    /// The smallest n-gram is a pair.
    #[error("n-grams of order {0}, but the smallest order is 2")]
    Order(usize),
    /// No head, or more than there can be.
    #[error("{0} hash heads for each order of n-grams")]
    Heads(usize),
    /// One multiplier for each place, one offset and one size for each head.
    #[error("{actual} n-gram {what}, but {expected} are needed")]
    Count {
        /// Which constants.
        what: &'static str,
        /// How many are needed.
        expected: usize,
        /// How many were given.
        actual: usize,
    },
    /// A head's rows are none, or not all in the table.
    #[error(
        "n-gram head {head} has {size} rows from row {offset} of a table of {n_table_rows} rows"
    )]
    Rows {
        /// Which head.
        head: usize,
        /// Its first row.
        offset: u64,
        /// Its rows.
        size: u64,
        /// Rows of the table.
        n_table_rows: u64,
    },
}

/// How tokens become rows of the n-gram table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NgramShape {
    heads_per_ngram: usize,
    eos: u32,
    /// `(order)`.
    multipliers: Vec<u64>,
    /// `(n_heads)`: first row and number of rows.
    heads: Vec<(u64, u64)>,
}

impl NgramShape {
    /// N-grams of 2 to `order` tokens, with `heads_per_ngram` rows each.
    ///
    /// *Shapes*: `multipliers` `(order)`; `offsets` and `sizes` `((order - 1) * heads_per_ngram)`,
    /// those of pairs first.
    ///
    /// # Errors
    /// [`NgramError`] if the constants, which come from a weight file, do not fit each other or
    /// lead out of the table's `n_table_rows` rows.
    pub fn new(
        order: usize,
        heads_per_ngram: usize,
        eos: u32,
        multipliers: &[u64],
        offsets: &[u64],
        sizes: &[u64],
        n_table_rows: u64,
    ) -> Result<Self, NgramError> {
        if order < 2 {
            return Err(NgramError::Order(order));
        }
        let n_heads = (order - 1).checked_mul(heads_per_ngram).filter(|&n| n > 0);
        let n_heads = n_heads.ok_or(NgramError::Heads(heads_per_ngram))?;
        let counts = [
            ("multipliers", order, multipliers.len()),
            ("offsets", n_heads, offsets.len()),
            ("sizes", n_heads, sizes.len()),
        ];
        for (what, expected, actual) in counts {
            if expected != actual {
                return Err(NgramError::Count { what, expected, actual });
            }
        }
        let heads: Vec<(u64, u64)> = offsets.iter().copied().zip(sizes.iter().copied()).collect();
        for (head, &(offset, size)) in heads.iter().enumerate() {
            let is_inside = offset.checked_add(size).is_some_and(|end| end <= n_table_rows);
            if size == 0 || !is_inside {
                return Err(NgramError::Rows { head, offset, size, n_table_rows });
            }
        }
        Ok(Self { heads_per_ngram, eos, multipliers: multipliers.to_vec(), heads })
    }

    /// Tokens in the longest n-gram; one more than the history holds.
    #[must_use]
    pub fn order(&self) -> usize {
        self.multipliers.len()
    }

    /// Rows a token reads.
    #[must_use]
    pub fn n_heads(&self) -> usize {
        self.heads.len()
    }

    /// The token that ends a text, and stands where there is none.
    #[must_use]
    pub fn eos(&self) -> u32 {
        self.eos
    }
}

/// See `cpu::ngram_rows`.
///
/// # Panics
/// When the history has another length than `order - 1`.
pub fn ngram_rows(shape: &NgramShape, history: &[u32], tokens: &[u32], out: &mut Vec<u64>) {
    let n_before = shape.order() - 1;
    assert_eq!(history.len(), n_before, "tokens of the history");
    let before = |place: usize| match place < n_before {
        true => history[place],
        false => tokens[place - n_before],
    };
    out.clear();
    for (index, &token) in tokens.iter().enumerate() {
        let place = n_before + index;
        let mut hash = u64::from(token).wrapping_mul(shape.multipliers[0]);
        let mut is_cut = false;
        for distance in 1..shape.order() {
            let token = before(place - distance);
            is_cut |= token == shape.eos;
            let token = if is_cut { shape.eos } else { token };
            hash ^= u64::from(token).wrapping_mul(shape.multipliers[distance]);
            let heads = &shape.heads[(distance - 1) * shape.heads_per_ngram..];
            let heads = heads[..shape.heads_per_ngram].iter();
            out.extend(heads.map(|&(offset, size)| hash % size + offset));
        }
    }
}
