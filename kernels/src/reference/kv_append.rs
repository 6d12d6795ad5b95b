//! Keys and values as the cache keeps them: rounded to f16, here simply row after row.

use half::f16;

/// Appends the rows to a sequence's `(n_positions, n_kv_heads, head_dim)` keys or values.
pub fn kv_append(cache: &mut Vec<f16>, rows: &[f32]) {
    cache.extend(rows.iter().map(|&x| f16::from_f32(x)));
}
