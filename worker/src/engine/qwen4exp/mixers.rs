//! What mixes the positions of a layer: from `x` to `y`.

use kernels::cpu::Gate;

use super::{Forward, Shapes};
use crate::backend::{Backend, DeltaRows, Span};
use crate::model::qwen4exp::{FullAttention, Indexer, LinearAttention};

impl<B: Backend> Forward<'_, B> {
    /// Softmax attention with an output gate, over the blocks that the indexer chooses.
    pub(super) fn full(&mut self, mixer: &FullAttention<B::Matrix, B::Vector>, index: usize) {
        let (backend, s) = (self.backend, &mut *self.s);
        let Shapes { rms_eps, heads, precision, .. } = *self.shapes;
        let (f, head_dim) = (&mut s.full, heads.head_dim());
        backend.load(&s.x, precision, &mut s.operand);
        backend.matmul(&mixer.q, &mut s.operand, &mut f.q_and_gate);
        backend.matmul(&mixer.k, &mut s.operand, &mut f.k_raw);
        backend.matmul(&mixer.v, &mut s.operand, &mut f.v);
        if let Some(indexer) = &mixer.indexer {
            backend.matmul(&indexer.q, &mut s.operand, &mut f.index_q_raw);
            backend.matmul(&indexer.k, &mut s.operand, &mut f.index_k);
        }
        backend.split_heads(&f.q_and_gate, head_dim, &mut f.q_raw, &mut f.gate);
        backend.rms_norm(&f.q_raw, &mixer.q_norm, rms_eps, &mut f.q);
        backend.rms_norm(&f.k_raw, &mixer.k_norm, rms_eps, &mut f.k);
        backend.rope(&mut f.q, head_dim, &s.angles);
        backend.rope(&mut f.k, head_dim, &s.angles);
        for span in &self.pass.spans {
            let pages = self.states.pages_mut(span.slot, index);
            backend.kv_append(heads, pages, span.start, span.rows.clone(), &f.k, &f.v);
        }
        if let Some(indexer) = &mixer.indexer {
            self.select(indexer, index);
        }
        self.attend(index, mixer.indexer.is_some());
        let s = &mut *self.s;
        backend.sigmoid_mul(&mut s.full.attended, &s.full.gate);
        backend.load(&s.full.attended, precision, &mut s.operand);
        backend.matmul(&mixer.output, &mut s.operand, &mut s.y);
    }

    /// Which blocks each row sees.
    fn select(&mut self, indexer: &Indexer<B::Matrix, B::Vector>, index: usize) {
        let (backend, s) = (self.backend, &mut *self.s);
        let Shapes { rms_eps, ref rope, .. } = *self.shapes;
        let Some(shape) = self.shapes.indexers[index] else { return };
        let f = &mut s.full;
        backend.rms_norm(&f.index_q_raw, &indexer.q_norm, rms_eps, &mut f.index_q);
        backend.rope(&mut f.index_q, shape.head_dim(), &s.angles);
        f.selections.resize_with(self.pass.spans.len(), B::Selection::default);
        for (span, selection) in self.pass.spans.iter().zip(&mut f.selections) {
            let keys = self.states.indexer_mut(span.slot, index);
            let rows = span.rows.clone();
            backend.indexer_append(keys, &f.index_k, rows, &indexer.k_norm, rms_eps, rope);
            let rows = span.rows.clone();
            backend.indexer_select(keys, span.start, &f.index_q, rows, selection);
        }
    }

    fn attend(&mut self, index: usize, is_sparse: bool) {
        let f = &mut self.s.full;
        let spans = self.pass.spans.iter().enumerate().map(|(number, span)| Span {
            pages: self.states.pages(span.slot, index),
            start: span.start,
            n_rows: span.rows.len(),
            selection: is_sparse.then(|| &f.selections[number]),
        });
        let spans: Vec<_> = spans.collect();
        self.backend.attention(self.shapes.heads, &f.q, &spans, &mut f.attended);
    }

    /// The gated delta rule.
    pub(super) fn linear(&mut self, mixer: &LinearAttention<B::Matrix, B::Vector>, index: usize) {
        let (backend, s) = (self.backend, &mut *self.s);
        let Shapes { rms_eps, delta, conv, precision, .. } = *self.shapes;
        let l = &mut s.linear;
        backend.load(&s.x, precision, &mut s.operand);
        backend.matmul(&mixer.qkv, &mut s.operand, &mut l.qkv_raw);
        backend.matmul(&mixer.gate, &mut s.operand, &mut l.z);
        backend.matmul(&mixer.alpha, &mut s.operand, &mut l.alpha);
        backend.matmul(&mixer.beta, &mut s.operand, &mut l.beta);
        backend.resize(&mut l.qkv, self.pass.tokens.len());
        backend.resize(&mut l.o, self.pass.tokens.len());
        for span in &self.pass.spans {
            let rows = span.rows.clone();
            let state = self.states.linear_mut(span.slot, index);
            let history = &mut state.history;
            backend.causal_conv(conv, &l.qkv_raw, rows.clone(), &mixer.conv, history, &mut l.qkv);
            let (qkv, alpha, beta) = (&l.qkv, &l.alpha, &l.beta);
            let inputs = DeltaRows { qkv, alpha, beta, a: &mixer.a, dt: &mixer.dt };
            backend.delta_rule(delta, &inputs, rows, &mut state.delta, &mut l.o);
        }
        backend.gated_rms_norm(&l.o, &mixer.norm, rms_eps, &l.z, Gate::Sigmoid, &mut l.gated);
        backend.load(&l.gated, precision, &mut s.operand);
        backend.matmul(&mixer.out, &mut s.operand, &mut s.y);
    }
}
