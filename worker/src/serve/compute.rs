//! What the loop needs of an engine. A trait so that tests can serve without a model; static
//! dispatch, since the real engine is the only one in the token path.

use std::ops::ControlFlow;

use shared::ids::Position;

use crate::backend::Backend;
use crate::engine::{Engine, EngineError, LogitsRow, ModelInfo, Part, SlotIndex};

/// An engine with sequence slots. [`Engine`] is the real one.
pub trait Compute {
    /// What was loaded.
    fn info(&self) -> &ModelInfo;

    /// One forward pass over all parts, then `each_row` for every row of logits wanted, in order
    /// of the parts. `hook` is called after every layer; if it breaks, the pass is aborted, as if
    /// it had never begun, and the answer is `Break`.
    ///
    /// # Errors
    ///
    /// As [`Engine::forward`]; `each_row` has then not been called.
    fn forward(
        &mut self,
        parts: &[Part<'_>],
        hook: &mut dyn FnMut() -> ControlFlow<()>,
        each_row: &mut dyn FnMut(LogitsRow<'_>),
    ) -> Result<ControlFlow<()>, EngineError>;

    /// Drops every position of the slot from `length` on.
    fn truncate(&mut self, slot: SlotIndex, length: Position);
}

impl<B: Backend> Compute for Engine<B> {
    fn info(&self) -> &ModelInfo {
        self.info()
    }

    fn forward(
        &mut self,
        parts: &[Part<'_>],
        hook: &mut dyn FnMut() -> ControlFlow<()>,
        each_row: &mut dyn FnMut(LogitsRow<'_>),
    ) -> Result<ControlFlow<()>, EngineError> {
        match self.forward(parts, hook)? {
            None => Ok(ControlFlow::Break(())),
            Some(logits) => {
                logits.iter().for_each(each_row);
                Ok(ControlFlow::Continue(()))
            }
        }
    }

    fn truncate(&mut self, slot: SlotIndex, length: Position) {
        self.truncate(slot, length);
    }
}
