//! The routes over a scripted event loop: framing, refusals, nulls, errors, who may ask.

mod mock;

mod clients;
mod fuzz;
mod gate;
mod refusals;
mod streams;
mod whole;
