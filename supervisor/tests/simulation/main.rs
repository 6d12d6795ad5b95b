//! The real event loop against workers that fail as they are told, in simulated time.
//!
//! Laws: every answer is exactly that of an undisturbed run, or one honest failure; every log has
//! exactly one end; nothing is lost, repeated or changed; no process is left.

mod chaos;
mod faults;
mod harness;
mod latency;
mod model;
mod orders;
mod queue;
mod random;
mod worker;
