//! The processor's own vector units: the operations of [`kernels::cpu`], over host memory.

use std::ops::Range;
use std::thread::available_parallelism;

use kernels::cpu::kv::{Heads, KvFormat, KvPage};
use kernels::cpu::pool::Pool;
use kernels::cpu::{
    self, Activations, AttentionPart, ConvShape, DeltaForm, DeltaInputs, DeltaShape, Gate,
    IndexerKeys, IndexerShape, Precision, RopeAngles, RopeTable, Routing, Selection,
};
use kernels::isa::Isa;

use super::{Backend, DeltaRows, Span};
use crate::engine::{EngineError, EngineOptions};
use crate::model::{Linear, MappedExperts, MappedMatrix};

/// Threads and instructions.
#[derive(Debug)]
pub struct Cpu {
    pool: Pool,
    isa: Isa,
}

/// Rows for `matmul`, and in what numbers they are to be multiplied.
#[derive(Debug)]
pub struct Operand {
    rows: Activations,
    precision: Precision,
}

impl Default for Operand {
    fn default() -> Self {
        Self { rows: Activations::default(), precision: Precision::Int8 }
    }
}

/// Rows of activations in host memory.
#[derive(Debug)]
pub struct Rows {
    /// As many elements as the most rows have.
    values: Vec<f32>,
    width: usize,
    n_rows: usize,
}

impl Rows {
    fn get(&self) -> &[f32] {
        &self.values[..self.n_rows * self.width]
    }

    fn get_mut(&mut self) -> &mut [f32] {
        &mut self.values[..self.n_rows * self.width]
    }

    /// The given number of rows, to be written over.
    fn set(&mut self, n_rows: usize) -> &mut [f32] {
        self.n_rows = n_rows;
        self.get_mut()
    }

    fn range_mut(&mut self, rows: Range<usize>) -> &mut [f32] {
        let width = self.width;
        &mut self.get_mut()[rows.start * width..rows.end * width]
    }

    fn range(&self, rows: Range<usize>) -> &[f32] {
        &self.get()[rows.start * self.width..rows.end * self.width]
    }
}

impl Backend for Cpu {
    type Matrix = MappedMatrix;
    type Experts = MappedExperts;
    type Vector = Vec<f32>;
    type Rows = Rows;
    type Operand = Operand;
    type Angles = RopeAngles;
    type Page = KvPage;
    type State = Vec<f32>;
    type IndexerKeys = IndexerKeys;
    type Selection = Selection;
    type Routing = Routing;

    fn open(options: &EngineOptions) -> Result<Self, EngineError> {
        let isa = choose_isa(options.instruction_set.as_deref())?;
        let n_threads = match options.threads {
            0 => available_parallelism().map_or(1, usize::from),
            count => count as usize,
        };
        Ok(Self { pool: Pool::new(n_threads), isa })
    }

    fn threads(&self) -> usize {
        self.pool.threads()
    }

    fn instruction_set(&self) -> &str {
        self.isa.name()
    }

    fn place_matrix(mapped: MappedMatrix) -> Result<MappedMatrix, EngineError> {
        Ok(mapped)
    }

    fn place_experts(mapped: MappedExperts) -> Result<MappedExperts, EngineError> {
        Ok(mapped)
    }

    fn place_vector(values: Vec<f32>) -> Result<Vec<f32>, EngineError> {
        Ok(values)
    }

    fn rows(&self, n_rows_max: usize, width: usize) -> Result<Rows, EngineError> {
        let mut rows = Rows { values: Vec::new(), width, n_rows: 0 };
        self.reserve(&mut rows, n_rows_max)?;
        Ok(rows)
    }

    fn reserve(&self, x: &mut Rows, n_rows_max: usize) -> Result<(), EngineError> {
        let out_of_memory = |bytes: u64| EngineError::OutOfMemory {
            what: format!("{n_rows_max} rows of activations, {} wide", x.width),
            bytes,
        };
        let Some(wanted) = n_rows_max.checked_mul(x.width) else {
            return Err(out_of_memory(u64::MAX));
        };
        let missing = wanted.saturating_sub(x.values.len());
        if x.values.try_reserve_exact(missing).is_err() {
            return Err(out_of_memory(missing as u64 * 4));
        }
        if missing > 0 {
            x.values.resize(wanted, 0.0);
        }
        Ok(())
    }

    fn page(&self, heads: Heads, format: KvFormat) -> Result<KvPage, EngineError> {
        KvPage::try_new(heads, format).map_err(|_| EngineError::OutOfMemory {
            what: "a page of the KV cache".to_owned(),
            bytes: heads.page_bytes(format) as u64,
        })
    }

    fn state(&self, n_elements: usize) -> Result<Vec<f32>, EngineError> {
        let mut state = Vec::new();
        state.try_reserve_exact(n_elements).map_err(|_| EngineError::OutOfMemory {
            what: "the state of a sequence".to_owned(),
            bytes: n_elements as u64 * 4,
        })?;
        state.resize(n_elements, 0.0);
        Ok(state)
    }

    fn clear(&self, state: &mut Vec<f32>) {
        state.fill(0.0);
    }

    fn indexer_keys(&self, shape: IndexerShape) -> IndexerKeys {
        IndexerKeys::new(shape)
    }

    fn embed(&self, table: &MappedMatrix, tokens: &[u32], out: &mut Rows) {
        cpu::embed(&table.view(), tokens, out.set(tokens.len()));
    }

    fn rms_norm(&self, x: &Rows, weight: &Vec<f32>, eps: f32, out: &mut Rows) {
        let out = out.set(x.n_rows);
        cpu::rms_norm(&self.pool, self.isa, x.get(), weight, eps, out);
    }

    fn load(&self, x: &Rows, precision: Precision, out: &mut Operand) {
        out.precision = precision;
        out.rows.load(&self.pool, x.get(), x.n_rows, x.width);
    }

    fn linear(&self, layer: &Linear<MappedMatrix, Vec<f32>>, x: &mut Operand, out: &mut Rows) {
        self.matmul(&layer.weight, x, out);
        if let Some(bias) = &layer.bias {
            cpu::add_bias(&self.pool, out.get_mut(), bias);
        }
    }

    fn matmul(&self, weight: &MappedMatrix, x: &mut Operand, out: &mut Rows) {
        let out = out.set(x.rows.n_tokens());
        let (pool, weight) = (&self.pool, weight.view());
        cpu::matmul(pool, self.isa, x.precision, &weight, &mut x.rows, out);
    }

    fn angles(&self, table: &RopeTable, positions: &[u32], out: &mut RopeAngles) {
        table.angles(positions.iter().copied(), out);
    }

    fn rope(&self, x: &mut Rows, head_dim: usize, angles: &RopeAngles) {
        cpu::rope(&self.pool, self.isa, x.get_mut(), head_dim, angles);
    }

    fn kv_append(
        &self,
        heads: Heads,
        pages: &mut [KvPage],
        start: usize,
        rows: Range<usize>,
        keys: &Rows,
        values: &Rows,
    ) {
        let (keys, values) = (keys.range(rows.clone()), values.range(rows));
        cpu::kv_append(self.isa, heads, pages, start, keys, values);
    }

    fn attention(
        &self,
        heads: Heads,
        q: &Rows,
        spans: &[Span<'_, KvPage, Selection>],
        out: &mut Rows,
    ) {
        let parts: Vec<_> = spans
            .iter()
            .map(|&Span { pages, start, n_rows, selection }| AttentionPart {
                pages,
                start,
                n_rows,
                selection,
            })
            .collect();
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
        let scale = 1.0 / (heads.head_dim() as f32).sqrt();
        cpu::attention(&self.pool, self.isa, heads, scale, q.get(), &parts, out.set(q.n_rows));
    }

    fn swiglu(&self, gate: &Rows, up: &Rows, out: &mut Rows) {
        cpu::swiglu(&self.pool, self.isa, gate.get(), up.get(), out.set(gate.n_rows));
    }

    fn residual_add(&self, x: &mut Rows, y: &Rows) {
        cpu::residual_add(&self.pool, x.get_mut(), y.get());
    }

    fn embed_rows(&self, table: &MappedMatrix, rows: &[u64], n_heads: usize, out: &mut Rows) {
        cpu::embed_rows(&table.view(), rows, out.set(rows.len() / n_heads));
    }

    fn rms_norm_streams(
        &self,
        x: &Rows,
        weight: &Vec<f32>,
        n_streams: usize,
        eps: f32,
        out: &mut Rows,
    ) {
        let (pool, out) = (&self.pool, out.set(x.n_rows));
        cpu::rms_norm_streams(pool, self.isa, x.get(), weight, n_streams, eps, out);
    }

    fn hyper_expand(&self, x: &Rows, n_streams: usize, out: &mut Rows) {
        cpu::hyper_expand(&self.pool, x.get(), x.width, n_streams, out.set(x.n_rows));
    }

    fn hyper_silu(&self, x: &mut Rows, n_streams: usize) {
        cpu::hyper_silu(&self.pool, self.isa, x.get_mut(), n_streams);
    }

    fn hyper_mix(&self, normed: &Rows, gamma: &Rows, n_streams: usize, out: &mut Rows) {
        let (d_model, out) = (out.width, out.set(normed.n_rows));
        let (pool, normed, gamma) = (&self.pool, normed.get(), gamma.get());
        cpu::hyper_mix(pool, self.isa, normed, gamma, d_model, n_streams, out);
    }

    fn hyper_add(&self, residual: &mut Rows, y: &Rows, inject: &Rows, n_streams: usize) {
        let (residual, y, inject) = (residual.get_mut(), y.get(), inject.get());
        cpu::hyper_add(&self.pool, self.isa, residual, y, inject, n_streams);
    }

    fn split_heads(&self, x: &Rows, head_dim: usize, q: &mut Rows, gate: &mut Rows) {
        let (q, gate) = (q.set(x.n_rows), gate.set(x.n_rows));
        cpu::split_heads(&self.pool, x.get(), head_dim, q, gate);
    }

    fn sigmoid_mul(&self, x: &mut Rows, gate: &Rows) {
        cpu::sigmoid_mul(&self.pool, self.isa, x.get_mut(), gate.get());
    }

    fn ple_gate(&self, key: &Rows, query: &Rows, value: &Rows, n_streams: usize, out: &mut Rows) {
        let (pool, out) = (&self.pool, out.set(key.n_rows));
        let (key, query, d_model) = (key.get(), query.get(), value.width);
        cpu::ple_gate(pool, self.isa, key, query, value.get(), d_model, n_streams, out);
    }

    fn causal_conv(
        &self,
        shape: ConvShape,
        x: &Rows,
        rows: Range<usize>,
        weight: &Vec<f32>,
        history: &mut Vec<f32>,
        out: &mut Rows,
    ) {
        let (x, out) = (x.range(rows.clone()), out.range_mut(rows));
        cpu::causal_conv(&self.pool, self.isa, shape, x, weight, history, out);
    }

    fn delta_rule(
        &self,
        shape: DeltaShape,
        inputs: &DeltaRows<'_, Rows, Vec<f32>>,
        rows: Range<usize>,
        state: &mut Vec<f32>,
        out: &mut Rows,
    ) {
        let inputs = DeltaInputs {
            qkv: inputs.qkv.range(rows.clone()),
            alpha: inputs.alpha.range(rows.clone()),
            beta: inputs.beta.range(rows.clone()),
            a: inputs.a,
            dt: inputs.dt,
        };
        let (form, out) = (DeltaForm::Recurrent, out.range_mut(rows));
        cpu::delta_rule(&self.pool, self.isa, shape, &inputs, form, state, out);
    }

    fn gated_rms_norm(
        &self,
        x: &Rows,
        weight: &Vec<f32>,
        eps: f32,
        z: &Rows,
        gate: Gate,
        out: &mut Rows,
    ) {
        let out = out.set(x.n_rows);
        cpu::gated_rms_norm(&self.pool, self.isa, x.get(), weight, eps, z.get(), gate, out);
    }

    fn indexer_append(
        &self,
        keys: &mut IndexerKeys,
        raw: &Rows,
        rows: Range<usize>,
        norm: &Vec<f32>,
        eps: f32,
        table: &RopeTable,
    ) {
        cpu::indexer_append(&self.pool, self.isa, keys, raw.range(rows), norm, eps, table);
    }

    fn indexer_select(
        &self,
        keys: &IndexerKeys,
        start: usize,
        queries: &Rows,
        rows: Range<usize>,
        out: &mut Selection,
    ) {
        cpu::indexer_select(&self.pool, self.isa, keys, start, queries.range(rows), out);
    }

    fn indexer_truncate(&self, keys: &mut IndexerKeys, length: usize) -> bool {
        keys.truncate(length)
    }

    fn route(&self, logits: &Rows, n_used: usize, out: &mut Routing) {
        cpu::route(logits.get(), logits.width, n_used, out);
    }

    fn expert_matmul(
        &self,
        weight: &MappedExperts,
        routing: &Routing,
        x: &mut Operand,
        out: &mut Rows,
    ) {
        let (pool, precision, weight) = (&self.pool, x.precision, weight.view());
        let out = out.set(routing.experts().len());
        cpu::expert_matmul(pool, self.isa, precision, &weight, routing, &x.rows, out);
    }

    fn moe_combine(
        &self,
        routing: &Routing,
        experts: &Rows,
        shared: &Rows,
        gate: &Rows,
        out: &mut Rows,
    ) {
        let (experts, gate, out) = (experts.get(), gate.get(), out.set(shared.n_rows));
        cpu::moe_combine(&self.pool, self.isa, routing, experts, shared.get(), gate, out);
    }

    fn resize(&self, x: &mut Rows, n_rows: usize) {
        x.n_rows = n_rows;
    }

    fn keep_rows(&self, x: &mut Rows, kept: &[usize]) {
        for (to, &from) in kept.iter().enumerate() {
            let source = from * x.width..(from + 1) * x.width;
            x.values.copy_within(source, to * x.width);
        }
        x.n_rows = kept.len();
    }

    fn nonfinite_scan(&self, x: &Rows, row: usize) -> Option<usize> {
        cpu::nonfinite_scan(self.isa, x.range(row..row + 1))
    }

    fn read<'a>(&'a self, x: &'a Rows) -> &'a [f32] {
        x.get()
    }
}

fn choose_isa(forced: Option<&str>) -> Result<Isa, EngineError> {
    let Some(name) = forced else { return Ok(Isa::detect()) };
    Isa::from_name(name).ok_or_else(|| {
        let available: Vec<_> = Isa::available().into_iter().map(Isa::name).collect();
        EngineError::Option {
            option: "instruction_set",
            what: format!("`{name}` is not one this machine has: {}", available.join(", ")),
        }
    })
}
