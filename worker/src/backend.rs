//! What computes. Static dispatch: the engine is compiled once for each backend.

/// The operations of the forward pass.
pub trait Backend {}

/// The processor's own vector units.
#[derive(Debug)]
pub struct Cpu {}

impl Backend for Cpu {}
