//! Hands the tensors of a weight file to a backend, each with the shape that the model needs.

use std::marker::PhantomData;

use super::{Linear, MappedExperts, MappedMatrix, WeightFile};
use crate::backend::Backend;
use crate::engine::EngineError;

/// A weight file on its way to a backend.
pub(super) struct Taker<'a, B> {
    pub(super) file: &'a mut WeightFile,
    backend: PhantomData<B>,
}

impl<'a, B> Taker<'a, B> {
    pub(super) fn new(file: &'a mut WeightFile) -> Self {
        Self { file, backend: PhantomData }
    }
}

impl<B: Backend> Taker<'_, B> {
    /// Whether the file has such a tensor.
    pub(super) fn has(&self, name: &str) -> bool {
        self.file.dims(name).is_some()
    }

    /// The matrix `STEM.weight`.
    pub(super) fn matrix(
        &mut self,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<B::Matrix, EngineError> {
        let mapped = self.file.matrix(&format!("{stem}.weight"), rows, cols)?;
        B::place_matrix(mapped)
    }

    /// The matrix `STEM.weight` with the vector `STEM.bias`, if there is one.
    pub(super) fn linear(
        &mut self,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Linear<B::Matrix, B::Vector>, EngineError> {
        let weight = self.matrix(stem, rows, cols)?;
        let bias_name = format!("{stem}.bias");
        let bias = match self.has(&bias_name) {
            true => Some(self.vector(&bias_name, rows)?),
            false => None,
        };
        Ok(Linear { weight, bias })
    }

    /// A vector, widened to f32.
    pub(super) fn vector(&mut self, name: &str, count: usize) -> Result<B::Vector, EngineError> {
        let values = self.values(name, count)?;
        B::place_vector(values)
    }

    /// The elements of a small tensor, whatever it is stored as.
    pub(super) fn values(&mut self, name: &str, count: usize) -> Result<Vec<f32>, EngineError> {
        let mapped: MappedMatrix = self.file.matrix(name, 1, count)?;
        let mut values = vec![0.0; count];
        kernels::cpu::embed(&mapped.view(), &[0], &mut values);
        Ok(values)
    }

    /// A small matrix `(rows, cols)` as a vector of all its elements, row by row.
    pub(super) fn flat(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<B::Vector, EngineError> {
        let mapped: MappedMatrix = self.file.matrix(name, rows, cols)?;
        let mut values = vec![0.0; rows * cols];
        for (row, out) in (0..).zip(values.chunks_exact_mut(cols)) {
            kernels::cpu::embed(&mapped.view(), &[row], out);
        }
        B::place_vector(values)
    }

    /// The matrices of all experts, `STEM.weight`.
    pub(super) fn experts(
        &mut self,
        stem: &str,
        n_experts: usize,
        rows: usize,
        cols: usize,
    ) -> Result<MappedExperts, EngineError> {
        self.file.experts(&format!("{stem}.weight"), n_experts, rows, cols)
    }
}
