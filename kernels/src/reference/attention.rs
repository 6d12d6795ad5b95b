//! Causal attention of one query row: `sum_j softmax_j(scale * q . k_j) * v_j`.

use half::f16;

/// One row at the last of the given positions.
///
/// # Shapes
///
/// `q` and `out`: `(n_heads, head_dim)`; `keys` and `values`: `(n_positions, n_kv_heads,
/// head_dim)`.
pub fn attention(
    n_kv_heads: usize,
    head_dim: usize,
    scale: f32,
    q: &[f32],
    keys: &[f16],
    values: &[f16],
    out: &mut [f32],
) {
    let group = q.len() / head_dim / n_kv_heads;
    let kv_width = n_kv_heads * head_dim;
    for (head, (q, out)) in q.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)).enumerate()
    {
        let kv_start = head / group * head_dim;
        let mut scores = Vec::new();
        for keys in keys.chunks_exact(kv_width) {
            let mut score = 0.0;
            for (q, key) in q.iter().zip(&keys[kv_start..]) {
                score += q * key.to_f32();
            }
            scores.push(score * scale);
        }
        let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for score in &mut scores {
            *score = (*score - greatest).exp();
            sum += *score;
        }
        out.fill(0.0);
        for (weight, values) in scores.iter().zip(values.chunks_exact(kv_width)) {
            for (out, value) in out.iter_mut().zip(&values[kv_start..]) {
                *out += weight / sum * value.to_f32();
            }
        }
    }
}
