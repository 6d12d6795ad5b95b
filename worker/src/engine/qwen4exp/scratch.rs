//! Activations of a pass, allocated once for the largest.

use crate::backend::Backend;
use crate::engine::EngineError;
use crate::model::qwen4exp::Hyperparameters;

/// Rows of a pass; the comment says how wide they are.
#[derive(Debug)]
pub(super) struct Scratch<B: Backend> {
    /// `d_model`. What a block reads.
    pub(super) x: B::Rows,
    /// `d_model`. What a block gives.
    pub(super) y: B::Rows,
    /// `n_streams * d_model`, like the next three.
    pub(super) residual: B::Rows,
    pub(super) normed: B::Rows,
    pub(super) wide: B::Rows,
    pub(super) extra: B::Rows,
    /// `hyper_rank`.
    pub(super) low: B::Rows,
    /// `n_streams`.
    pub(super) inject: B::Rows,
    pub(super) full: FullRows<B>,
    pub(super) linear: LinearRows<B>,
    pub(super) experts: ExpertRows<B>,
    pub(super) operand: B::Operand,
    pub(super) angles: B::Angles,
    pub(super) ngram_rows: Vec<u64>,
    pub(super) span_rows: Vec<u64>,
}

/// Rows of full attention.
#[derive(Debug)]
pub(super) struct FullRows<B: Backend> {
    /// `2 * q_width`.
    pub(super) q_and_gate: B::Rows,
    /// `q_width`, like the next three.
    pub(super) q_raw: B::Rows,
    pub(super) q: B::Rows,
    pub(super) gate: B::Rows,
    pub(super) attended: B::Rows,
    /// `kv_width`, like the next two.
    pub(super) k_raw: B::Rows,
    pub(super) k: B::Rows,
    pub(super) v: B::Rows,
    /// The indexer's queries, before and after their norm.
    pub(super) index_q_raw: B::Rows,
    pub(super) index_q: B::Rows,
    /// The indexer's raw keys.
    pub(super) index_k: B::Rows,
    /// Of each span.
    pub(super) selections: Vec<B::Selection>,
}

/// Rows of the delta rule.
#[derive(Debug)]
pub(super) struct LinearRows<B: Backend> {
    /// `qkv_width`, before and after the convolution.
    pub(super) qkv_raw: B::Rows,
    pub(super) qkv: B::Rows,
    /// `n_value_heads`, like the next.
    pub(super) alpha: B::Rows,
    pub(super) beta: B::Rows,
    /// `value_width`, like the next two.
    pub(super) z: B::Rows,
    pub(super) o: B::Rows,
    pub(super) gated: B::Rows,
}

/// Rows of the experts.
#[derive(Debug)]
pub(super) struct ExpertRows<B: Backend> {
    /// `n_experts`.
    pub(super) router: B::Rows,
    pub(super) routing: B::Routing,
    /// `d_expert`, a row for each expert of each row, like the next two.
    pub(super) gate: B::Rows,
    pub(super) up: B::Rows,
    pub(super) hidden: B::Rows,
    /// `d_model`, likewise.
    pub(super) out: B::Rows,
    /// `d_shared`, like the next two.
    pub(super) shared_gate: B::Rows,
    pub(super) shared_up: B::Rows,
    pub(super) shared_hidden: B::Rows,
    /// `d_model`.
    pub(super) shared: B::Rows,
    /// One number.
    pub(super) shared_scale: B::Rows,
    /// The rows of `hidden`, to be multiplied.
    pub(super) operand: B::Operand,
}

impl<B: Backend> Scratch<B> {
    pub(super) fn new(
        backend: &B,
        hyper: &Hyperparameters,
        n_tokens: usize,
    ) -> Result<Self, EngineError> {
        let rows = |width| backend.rows(n_tokens, width);
        let pairs = |width| backend.rows(n_tokens * hyper.n_experts_used, width);
        let (d_model, wide) = (hyper.d_model, hyper.wide());
        let (q_width, kv_width) = (hyper.q_width(), hyper.kv_width());
        let indexer = hyper.indexer;
        let index_q = indexer.n_heads * indexer.head_dim;
        Ok(Self {
            x: rows(d_model)?,
            y: rows(d_model)?,
            residual: rows(wide)?,
            normed: rows(wide)?,
            wide: rows(wide)?,
            extra: rows(wide)?,
            low: rows(hyper.hyper_rank)?,
            inject: rows(hyper.n_streams)?,
            full: FullRows {
                q_and_gate: rows(2 * q_width)?,
                q_raw: rows(q_width)?,
                q: rows(q_width)?,
                gate: rows(q_width)?,
                attended: rows(q_width)?,
                k_raw: rows(kv_width)?,
                k: rows(kv_width)?,
                v: rows(kv_width)?,
                index_q_raw: rows(index_q)?,
                index_q: rows(index_q)?,
                index_k: rows(indexer.head_dim)?,
                selections: Vec::new(),
            },
            linear: LinearRows {
                qkv_raw: rows(hyper.qkv_width())?,
                qkv: rows(hyper.qkv_width())?,
                alpha: rows(hyper.n_value_heads)?,
                beta: rows(hyper.n_value_heads)?,
                z: rows(hyper.value_width())?,
                o: rows(hyper.value_width())?,
                gated: rows(hyper.value_width())?,
            },
            experts: ExpertRows {
                router: rows(hyper.n_experts)?,
                routing: B::Routing::default(),
                gate: pairs(hyper.d_expert)?,
                up: pairs(hyper.d_expert)?,
                hidden: pairs(hyper.d_expert)?,
                out: pairs(d_model)?,
                shared_gate: rows(hyper.d_shared)?,
                shared_up: rows(hyper.d_shared)?,
                shared_hidden: rows(hyper.d_shared)?,
                shared: rows(d_model)?,
                shared_scale: rows(1)?,
                operand: B::Operand::default(),
            },
            operand: B::Operand::default(),
            angles: B::Angles::default(),
            ngram_rows: Vec::new(),
            span_rows: Vec::new(),
        })
    }
}
