//! The fast versions, for host processors; instructions are chosen at run time by
//! [`Isa`](crate::isa::Isa).
//!
//! The only place of this crate where `unsafe` is allowed: for instructions beyond the baseline and
//! for threads that write disjoint parts of one slice.

pub mod pool;
pub mod shared_mut;
