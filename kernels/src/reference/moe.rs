//! A mixture of experts: `softmax` over all experts, the best few, their products and their sum.

/// Which experts each row uses, best first, with what weight. Reused from pass to pass.
#[derive(Debug, Clone, Default)]
pub struct Routing {
    n_used: usize,
    /// *Shapes*: `(n, n_used)`.
    experts: Vec<u32>,
    /// *Shapes*: `(n, n_used)`.
    weights: Vec<f32>,
    /// Pairs `row * n_used + rank`, ordered by expert, then by row.
    pairs: Vec<u32>,
    /// Expert, and the end of its pairs.
    groups: Vec<(u32, u32)>,
    probabilities: Vec<f32>,
}

impl Routing {
    /// Experts of each row.
    #[must_use]
    pub fn n_used(&self) -> usize {
        self.n_used
    }

    /// Rows.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.experts.len().checked_div(self.n_used).unwrap_or(0)
    }

    /// Experts, best first. *Shapes*: `(n, n_used)`.
    #[must_use]
    pub fn experts(&self) -> &[u32] {
        &self.experts
    }

    /// Their weights, which add up to 1 in each row. *Shapes*: `(n, n_used)`.
    #[must_use]
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Every expert in use, with its pairs `row * n_used + rank`.
    pub fn groups(&self) -> impl Iterator<Item = (usize, &[u32])> {
        let mut start = 0;
        self.groups.iter().map(move |&(expert, end)| {
            let pairs = &self.pairs[start..end as usize];
            start = end as usize;
            (expert as usize, pairs)
        })
    }
}

/// Chooses the `n_used` largest of `softmax(logits)` per row; of equal ones the lower index. Their
/// weights are divided by their sum. A NaN among a row's logits makes its weights NaN.
///
/// *Shapes*: `logits` `(n, n_experts)`.
///
/// # Panics
/// When rows are not whole, or `n_used` is 0 or above `n_experts`.
pub fn route(logits: &[f32], n_experts: usize, n_used: usize, out: &mut Routing) {
    assert!(n_used > 0 && n_used <= n_experts, "{n_used} of {n_experts} experts");
    assert!(logits.len().is_multiple_of(n_experts), "rows of {n_experts} logits");
    out.n_used = n_used;
    out.experts.clear();
    out.weights.clear();
    for logits in logits.chunks_exact(n_experts) {
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        out.probabilities.clear();
        out.probabilities.extend(logits.iter().map(|logit| (logit - greatest).exp()));
        let total: f32 = out.probabilities.iter().sum();
        let first = out.experts.len();
        for _ in 0..n_used {
            let mut best = None;
            for (index, &p) in (0..).zip(&out.probabilities) {
                let is_free = !out.experts[first..].contains(&index);
                if is_free && best.is_none_or(|(_, most)| p > most) {
                    best = Some((index, p));
                }
            }
            let (index, p) = best.unwrap_or((0, f32::NAN));
            out.experts.push(index);
            out.weights.push(p / total);
        }
        let weights = &mut out.weights[first..];
        let sum: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    group(out);
}

fn group(out: &mut Routing) {
    let n_pairs = u32::try_from(out.experts.len()).unwrap_or(u32::MAX);
    out.pairs.clear();
    out.pairs.extend(0..n_pairs);
    let experts = &out.experts;
    out.pairs.sort_by_key(|&pair| (experts[pair as usize], pair));
    out.groups.clear();
    for (end, &pair) in (1..).zip(&out.pairs) {
        let expert = experts[pair as usize];
        match out.groups.last_mut() {
            Some(group) if group.0 == expert => group.1 = end,
            _ => out.groups.push((expert, end)),
        }
    }
}

/// See `cpu::moe_combine`.
pub fn moe_combine(
    routing: &Routing,
    experts: &[f32],
    shared: &[f32],
    gate: &[f32],
    y: &mut [f32],
) {
    let n_used = routing.n_used();
    let width = y.len().checked_div(gate.len()).unwrap_or(0);
    for (row, y) in y.chunks_exact_mut(width.max(1)).enumerate() {
        for (column, y) in y.iter_mut().enumerate() {
            let shared = f64::from(shared[row * width + column]);
            let mut sum = shared / (1.0 + (-f64::from(gate[row])).exp());
            for pair in row * n_used..(row + 1) * n_used {
                let expert = f64::from(experts[pair * width + column]);
                sum += f64::from(routing.weights()[pair]) * expert;
            }
            #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
            let rounded = sum as f32;
            *y = rounded;
        }
    }
}
