//! Truncation and draw over a fully sorted row, in f64.

/// Truncation settings; see `cpu::sample::SampleParams`.
#[derive(Debug, Clone, Copy)]
pub struct Truncation {
    /// Keep the k most likely; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set whose probabilities reach p.
    pub top_p: f32,
    /// Keep what is at least p times as likely as the best.
    pub min_p: f32,
}

/// Index of the greatest element, the lowest of equals.
#[must_use]
pub fn best(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, x) in row.iter().enumerate() {
        if *x > row[best] {
            best = index;
        }
    }
    best
}

/// Ids that survive truncation, in their order.
#[must_use]
pub fn kept(row: &[f32], truncation: Truncation) -> Vec<usize> {
    let greatest = f64::from(row[best(row)]);
    let weight = |id: usize| (f64::from(row[id]) - greatest).exp();
    let mut ids: Vec<usize> = (0..row.len()).collect();
    ids.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).expect("finite").then(a.cmp(&b)));
    if truncation.top_k > 0 {
        ids.truncate(truncation.top_k);
    }
    if truncation.top_p < 1.0 {
        let target = f64::from(truncation.top_p) * ids.iter().map(|&id| weight(id)).sum::<f64>();
        let mut mass = 0.0;
        let reached = ids.iter().position(|&id| {
            mass += weight(id);
            mass >= target
        });
        ids.truncate(reached.map_or(ids.len(), |place| place + 1));
    }
    ids.retain(|&id| weight(id) >= f64::from(truncation.min_p));
    ids.sort_unstable();
    ids
}

/// The kept id at which the cumulative probability first exceeds `uniform`.
#[must_use]
pub fn draw(row: &[f32], kept: &[usize], temperature: f32, uniform: f64) -> usize {
    let greatest = f64::from(row[best(row)]);
    let weight = |id: usize| ((f64::from(row[id]) - greatest) / f64::from(temperature)).exp();
    let target = uniform * kept.iter().map(|&id| weight(id)).sum::<f64>();
    let mut cumulative = 0.0;
    for &id in kept {
        cumulative += weight(id);
        if cumulative > target {
            return id;
        }
    }
    kept[kept.len() - 1]
}

/// Natural logarithms of the row's softmax.
#[must_use]
pub fn log_softmax(row: &[f32]) -> Vec<f64> {
    let greatest = f64::from(row[best(row)]);
    let sum: f64 = row.iter().map(|&x| (f64::from(x) - greatest).exp()).sum();
    row.iter().map(|&x| f64::from(x) - greatest - sum.ln()).collect()
}
