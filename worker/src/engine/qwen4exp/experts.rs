//! The mixture of experts: from `x` to `y`.

use super::{Forward, Shapes};
use crate::backend::Backend;
use crate::model::qwen4exp::Moe;

impl<B: Backend> Forward<'_, B> {
    /// Routed experts, and the shared one.
    pub(super) fn experts(&mut self, moe: &Moe<B::Matrix, B::Experts>) {
        let (backend, s) = (self.backend, &mut *self.s);
        let Shapes { n_experts_used, precision, .. } = *self.shapes;
        let e = &mut s.experts;
        backend.load(&s.x, precision, &mut s.operand);
        backend.matmul(&moe.router, &mut s.operand, &mut e.router);
        backend.route(&e.router, n_experts_used, &mut e.routing);
        backend.expert_matmul(&moe.gate, &e.routing, &mut s.operand, &mut e.gate);
        backend.expert_matmul(&moe.up, &e.routing, &mut s.operand, &mut e.up);
        backend.swiglu(&e.gate, &e.up, &mut e.hidden);
        backend.load(&e.hidden, precision, &mut e.operand);
        backend.expert_matmul(&moe.down, &e.routing, &mut e.operand, &mut e.out);
        backend.matmul(&moe.shared_gate, &mut s.operand, &mut e.shared_gate);
        backend.matmul(&moe.shared_up, &mut s.operand, &mut e.shared_up);
        backend.matmul(&moe.shared_scale, &mut s.operand, &mut e.shared_scale);
        backend.swiglu(&e.shared_gate, &e.shared_up, &mut e.shared_hidden);
        backend.load(&e.shared_hidden, precision, &mut s.operand);
        backend.matmul(&moe.shared_down, &mut s.operand, &mut e.shared);
        backend.moe_combine(&e.routing, &e.out, &e.shared, &e.shared_scale, &mut s.y);
    }
}
