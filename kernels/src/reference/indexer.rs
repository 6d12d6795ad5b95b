//! Which blocks a query sees, from the raw keys of all tokens.

use super::rms_norm::rms_norm;
use super::rope::rope;
use crate::cpu::RopePairs;

/// The blocks that the query at `position` sees besides the tail, rising; all of them if they are
/// no more than `n_chosen`. See `cpu::indexer_select`.
///
/// *Shapes*: `raw` `(position + 1, head_dim)`; `norm` `(head_dim)`; `query` `(n_heads, head_dim)`,
/// after norm and rotation.
pub fn blocks(
    raw: &[f32],
    norm: &[f32],
    eps: f32,
    (n_rot, base): (usize, f64),
    block_len: usize,
    n_chosen: usize,
    query: &[f32],
) -> Vec<u32> {
    let head_dim = norm.len();
    let mut scores = Vec::new();
    for (first, rows) in (0..).step_by(block_len).zip(raw.chunks_exact(block_len * head_dim)) {
        let mean: Vec<f32> = (0..head_dim)
            .map(|column| {
                let sum: f32 = rows.iter().skip(column).step_by(head_dim).sum();
                #[expect(clippy::cast_precision_loss, reason = "a block is a few tokens")]
                let n = block_len as f32;
                sum / n
            })
            .collect();
        let mut key = vec![0.0; head_dim];
        rms_norm(&mean, norm, eps, &mut key);
        rope(RopePairs::Halves, &mut key, n_rot, first, base, 1.0, None);
        let dot = |q: &[f32]| -> f64 {
            q.iter().zip(&key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
        };
        scores.push(query.chunks_exact(head_dim).map(|q| dot(q).max(0.0)).sum::<f64>());
    }
    let mut order: Vec<u32> = (0..).take(scores.len()).collect();
    order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b)));
    order.truncate(n_chosen);
    order.sort_unstable();
    order
}
