//! The real worker binary over a real link. Tests that compute need a model: the file that
//! `STRATA_TEST_MODEL` names; without it they say that they were skipped.
#![forbid(unsafe_code)]

mod deaths;
mod model;
mod peer;
