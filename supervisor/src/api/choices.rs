//! The choices of one request, read together.

use futures_util::future::select_all;
use shared::ids::Incarnation;

use super::service::Reader;
use crate::session::log::{Failure, Outcome, Phase, Record};

/// Readers of choices that are not over, each with its index. Dropping it cancels them.
pub(super) struct Choices {
    open: Vec<(usize, Box<dyn Reader>)>,
}

impl Choices {
    /// All choices, in order.
    pub(super) fn new(readers: Vec<Box<dyn Reader>>) -> Self {
        Self { open: readers.into_iter().enumerate().collect() }
    }

    /// The next records of whichever choice has some; `None` when all are over.
    ///
    /// # Cancel safety
    ///
    /// Yes, since a reader's `next` is.
    pub(super) async fn next(&mut self) -> Option<(usize, Vec<Record>)> {
        if self.open.is_empty() {
            return None;
        }
        let reads = self.open.iter_mut().map(|(_, reader)| reader.next());
        let (records, place, _) = select_all(reads).await;
        let index = self.open[place].0;
        if matches!(records.last(), Some(Record::End { .. })) {
            self.open.remove(place);
        } else {
            // The first of several that are ready wins: who was served goes last.
            let served = self.open.remove(place);
            self.open.push(served);
        }
        Some((index, records))
    }
}

/// The API's name for an end, or what failed.
pub(super) fn finish_reason(outcome: &Outcome) -> Result<&'static str, Failure> {
    match outcome {
        Outcome::Stop | Outcome::StopString(_) => Ok("stop"),
        Outcome::Length => Ok("length"),
        Outcome::Failed(failure) => Err(failure.clone()),
        Outcome::Cancelled => Err(Failure {
            kind: "internal",
            message: "the request was cancelled while it was being read".to_owned(),
            deterministic: false,
            position: None,
            phase: Phase::Queued,
            attempts: 0,
            incarnation: Incarnation(0),
            retryable: true,
        }),
    }
}
