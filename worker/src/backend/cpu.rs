//! The processor's own vector units: the operations of [`kernels::cpu`], over host memory.

use std::ops::Range;
use std::thread::available_parallelism;

use kernels::cpu::kv::{Heads, KvPage};
use kernels::cpu::pool::Pool;
use kernels::cpu::{self, Activations, AttentionPart, Precision, RopeAngles, RopePairs, RopeTable};
use kernels::isa::Isa;

use super::{Backend, Span};
use crate::engine::{EngineError, EngineOptions};
use crate::model::llama::Hyperparameters;
use crate::model::{Linear, MappedExperts, MappedMatrix};

/// Threads, instructions, and the numbers of the model that operations need.
#[derive(Debug)]
pub struct Cpu {
    pool: Pool,
    isa: Isa,
    heads: Heads,
    rms_eps: f32,
    rope: RopeTable,
    attention_scale: f32,
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

    fn range(&self, rows: Range<usize>) -> &[f32] {
        &self.get()[rows.start * self.width..rows.end * self.width]
    }
}

impl Backend for Cpu {
    type Matrix = MappedMatrix;
    type Experts = MappedExperts;
    type Vector = Vec<f32>;
    type Rows = Rows;
    type Operand = Activations;
    type Angles = RopeAngles;
    type Page = KvPage;

    fn open(
        hyper: &Hyperparameters,
        rope_factors: Option<&[f32]>,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        let isa = choose_isa(options.instruction_set.as_deref())?;
        let n_threads = match options.threads {
            0 => available_parallelism().map_or(1, usize::from),
            count => count as usize,
        };
        let unusable = |error: &dyn std::error::Error| EngineError::Backend(error.to_string());
        let heads = Heads::new(hyper.n_heads, hyper.n_kv_heads, hyper.head_dim)
            .map_err(|error| unusable(&error))?;
        let (base, scale) = (f64::from(hyper.rope_base), f64::from(hyper.rope_scale));
        let rope = RopeTable::new(RopePairs::Adjacent, hyper.n_rot, base, scale, rope_factors)
            .map_err(|error| unusable(&error))?;
        #[expect(clippy::cast_precision_loss, reason = "a head's width is far below 2^24")]
        let attention_scale = 1.0 / (hyper.head_dim as f32).sqrt();
        let rms_eps = hyper.rms_eps;
        Ok(Self { pool: Pool::new(n_threads), isa, heads, rms_eps, rope, attention_scale })
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

    fn page(&self) -> Result<KvPage, EngineError> {
        KvPage::try_new(self.heads).map_err(|_| EngineError::OutOfMemory {
            what: "a page of the KV cache".to_owned(),
            bytes: self.heads.page_bytes() as u64,
        })
    }

    fn embed(&self, table: &MappedMatrix, tokens: &[u32], out: &mut Rows) {
        cpu::embed(&table.view(), tokens, out.set(tokens.len()));
    }

    fn rms_norm(&self, x: &Rows, weight: &Vec<f32>, out: &mut Rows) {
        let out = out.set(x.n_rows);
        cpu::rms_norm(&self.pool, self.isa, x.get(), weight, self.rms_eps, out);
    }

    fn load(&self, x: &Rows, out: &mut Activations) {
        out.load(&self.pool, x.get(), x.n_rows, x.width);
    }

    fn linear(&self, layer: &Linear<MappedMatrix, Vec<f32>>, x: &mut Activations, out: &mut Rows) {
        self.matmul(&layer.weight, x, out);
        if let Some(bias) = &layer.bias {
            cpu::add_bias(&self.pool, out.get_mut(), bias);
        }
    }

    fn matmul(&self, weight: &MappedMatrix, x: &mut Activations, out: &mut Rows) {
        let out = out.set(x.n_tokens());
        cpu::matmul(&self.pool, self.isa, Precision::Int8, &weight.view(), x, out);
    }

    fn angles(&self, positions: &[u32], out: &mut RopeAngles) {
        self.rope.angles(positions.iter().copied(), out);
    }

    fn rope(&self, x: &mut Rows, angles: &RopeAngles) {
        cpu::rope(&self.pool, self.isa, x.get_mut(), self.heads.head_dim(), angles);
    }

    fn kv_append(
        &self,
        pages: &mut [KvPage],
        start: usize,
        rows: Range<usize>,
        keys: &Rows,
        values: &Rows,
    ) {
        let (keys, values) = (keys.range(rows.clone()), values.range(rows));
        cpu::kv_append(self.isa, self.heads, pages, start, keys, values);
    }

    fn attention(&self, q: &Rows, spans: &[Span<'_, KvPage>], out: &mut Rows) {
        let parts: Vec<_> = spans
            .iter()
            .map(|&Span { pages, start, n_rows }| AttentionPart { pages, start, n_rows })
            .collect();
        let (heads, scale, out) = (self.heads, self.attention_scale, out.set(q.n_rows));
        cpu::attention(&self.pool, self.isa, heads, scale, q.get(), &parts, out);
    }

    fn swiglu(&self, gate: &Rows, up: &Rows, out: &mut Rows) {
        cpu::swiglu(&self.pool, self.isa, gate.get(), up.get(), out.set(gate.n_rows));
    }

    fn residual_add(&self, x: &mut Rows, y: &Rows) {
        cpu::residual_add(&self.pool, x.get_mut(), y.get());
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
