//! The token log: what was emitted, in order, and how it ended. The truth about a session.
//!
//! The event loop appends; a reader follows at its own pace with a cursor and delays nobody.
//! Text is made at the append: each token's record holds the text that the token released, after
//! hold-back for stop strings, so the position at which a stop string ends a session is exact.
//!
//! Invariants:
//!
//! * A record, once appended, never changes.
//! * There is exactly one [`Record::End`], and it is the last: a writer that is dropped early
//!   appends one.
//! * The lock is held for copying records only, never across an await, and by nobody else.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shared::ids::{Incarnation, Position, SessionId, TokenId};
use shared::protocol::{Logprobs, Sampled};
use tokio::sync::{Notify, mpsc};

use crate::event_loop::TokenText;
use crate::text::StopMatcher;

/// Most records a reader takes at once.
pub const BATCH_MAX: usize = 256;

/// One entry of a token log.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// An emitted token. An end token is one too; it has no text.
    Token {
        /// Its position in the sequence; the first is the prompt's length.
        position: Position,
        /// The token.
        token: TokenId,
        /// The text this token released after hold-back; may be empty.
        text: String,
        /// Characters that this token completed, released or held back.
        chars: usize,
        /// Its log-probabilities, if asked for.
        logprobs: Option<Box<Logprobs>>,
    },
    /// The last record, exactly one.
    End {
        /// Text that was held back and belongs to the answer; empty at a failure.
        text: String,
        /// How it ended.
        outcome: Outcome,
    },
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The model drew an end token.
    Stop,
    /// This stop string was completed.
    StopString(String),
    /// The token limit or the context's end was reached.
    Length,
    /// It could not be finished.
    Failed(Failure),
    /// Its reader went away. Never read by anyone.
    Cancelled,
}

impl Outcome {
    /// The name used in the journal.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::StopString(_) => "stop_string",
            Self::Length => "length",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Why a session could not be finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// `crash`, `hang`, `nonfinite`, `load`, `held`, `shutdown`, `refused` or `internal`.
    pub kind: &'static str,
    /// What happened and what can be done, in one or two sentences.
    pub message: String,
    /// Whether the same request failed the same way in fresh processes: do not resend it.
    pub deterministic: bool,
    /// The position that could not be computed, if one is to blame.
    pub position: Option<Position>,
    /// What it was doing.
    pub phase: Phase,
    /// Submissions to a worker, this failure's included.
    pub attempts: u32,
    /// The last worker life that had it; 0 if none had.
    pub incarnation: Incarnation,
    /// Whether sending the request again may help.
    pub retryable: bool,
}

/// What a session was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for a slot or a worker.
    Queued,
    /// Reading its prompt.
    Prefill,
    /// Emitting tokens.
    Decode,
    /// Reading prompt and emitted tokens again after a recycle.
    Replay,
}

impl Phase {
    /// The name used in the API and the journal.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Replay => "replay",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Debug, Default)]
struct Shared {
    records: Mutex<Vec<Record>>,
    grown: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Record>> {
        // Nothing that can panic runs under the lock but an allocation; the records stay whole.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes an empty log. The reader announces on `gone` that it was dropped before the end.
pub fn new(
    session: SessionId,
    text: Box<dyn TokenText>,
    stops: &[String],
    gone: mpsc::UnboundedSender<SessionId>,
) -> (LogWriter, LogReader) {
    let shared = Arc::new(Shared::default());
    let matcher = (!stops.is_empty()).then(|| StopMatcher::new(stops));
    let writer = LogWriter {
        shared: Arc::clone(&shared),
        text,
        matcher,
        released: String::new(),
        is_over: false,
    };
    (writer, LogReader { shared, cursor: 0, session, gone, is_over: false })
}

/// The event loop's end of a log.
pub struct LogWriter {
    shared: Arc<Shared>,
    text: Box<dyn TokenText>,
    matcher: Option<StopMatcher>,
    /// Text of the token at hand; kept for its capacity.
    released: String,
    is_over: bool,
}

impl fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogWriter").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl LogWriter {
    /// Appends a token with the text it releases. If it completes a stop string, that ends the
    /// log, and the string is returned: later tokens do not belong to the answer.
    pub fn append(&mut self, position: Position, sampled: Sampled) -> Option<Outcome> {
        self.released.clear();
        self.text.push(sampled.token, &mut self.released);
        let mut shown = String::new();
        let hit = match &mut self.matcher {
            Some(matcher) => matcher.push(&self.released, &mut shown),
            None => {
                shown.push_str(&self.released);
                None
            }
        };
        self.record(position, sampled, shown, self.released.chars().count());
        let outcome = Outcome::StopString(hit?.stop);
        self.is_over = true;
        self.push(Record::End { text: String::new(), outcome: outcome.clone() });
        Some(outcome)
    }

    /// Appends an end token, which is no text, and ends the log.
    pub fn append_end_token(&mut self, position: Position, sampled: Sampled) {
        self.record(position, sampled, String::new(), 0);
        self.end(Outcome::Stop);
    }

    /// Ends the log. At a regular end, what was held back belongs to the answer after all; at a
    /// failure nobody knows whether it was the beginning of a stop string, so it is not shown.
    pub fn end(&mut self, outcome: Outcome) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        if matches!(outcome, Outcome::Failed(_) | Outcome::Cancelled) {
            self.push(Record::End { text: String::new(), outcome });
            return;
        }
        self.released.clear();
        self.text.finish(&mut self.released);
        let mut text = String::new();
        let hit = match &mut self.matcher {
            Some(matcher) => {
                let hit = matcher.push(&self.released, &mut text);
                matcher.finish(&mut text);
                hit
            }
            None => {
                text.push_str(&self.released);
                None
            }
        };
        // A stop string can end in the replacement character of a code point cut off by the end.
        let outcome = hit.map_or(outcome, |hit| Outcome::StopString(hit.stop));
        self.push(Record::End { text, outcome });
    }

    /// Whether the log has its end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    fn record(&self, position: Position, sampled: Sampled, text: String, chars: usize) {
        let Sampled { token, logprobs } = sampled;
        self.push(Record::Token { position, token, text, chars, logprobs });
    }

    fn push(&self, record: Record) {
        self.shared.lock().push(record);
        self.shared.grown.notify_one();
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.end(Outcome::Failed(Failure {
            kind: "internal",
            message: "the server lost track of this request; that is a defect in it".to_owned(),
            deterministic: false,
            position: None,
            phase: Phase::Queued,
            attempts: 0,
            incarnation: Incarnation(0),
            retryable: true,
        }));
    }
}

/// Reads a log from its start, at its own pace. Dropping it before the end cancels the session.
#[derive(Debug)]
pub struct LogReader {
    shared: Arc<Shared>,
    cursor: usize,
    session: SessionId,
    gone: mpsc::UnboundedSender<SessionId>,
    is_over: bool,
}

impl LogReader {
    /// The next records, at least one, at most [`BATCH_MAX`]. After [`Record::End`] nothing
    /// follows: do not call again.
    ///
    /// # Cancel safety
    ///
    /// Yes: the cursor moves only when records are returned.
    pub async fn next(&mut self) -> Vec<Record> {
        loop {
            // A notification between the look and the wait is stored, so none is missed.
            if let Some(records) = self.take() {
                return records;
            }
            self.shared.grown.notified().await;
        }
    }

    fn take(&mut self) -> Option<Vec<Record>> {
        let records = self.shared.lock();
        let fresh = &records[self.cursor..];
        if fresh.is_empty() {
            return None;
        }
        let taken = fresh[..fresh.len().min(BATCH_MAX)].to_vec();
        self.cursor += taken.len();
        self.is_over = matches!(taken.last(), Some(Record::End { .. }));
        Some(taken)
    }
}

impl Drop for LogReader {
    fn drop(&mut self) {
        if !self.is_over {
            // An error means that the event loop is gone, and with it all there is to cancel.
            self.gone.send(self.session).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LogReader, LogWriter, Outcome, Record, new};
    use crate::event_loop::TokenText;
    use shared::ids::{Position, SessionId, TokenId};
    use shared::protocol::Sampled;
    use tokio::sync::mpsc;

    /// Token `n` is the letter `n`; 0 is half a code point.
    #[derive(Default)]
    struct Letters {
        is_torn: bool,
    }

    impl TokenText for Letters {
        fn push(&mut self, token: TokenId, out: &mut String) {
            self.is_torn = token.0 == 0;
            out.extend(char::from_u32(token.0).filter(|_| token.0 != 0));
        }
        fn finish(&mut self, out: &mut String) {
            if self.is_torn {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    fn log(stops: &[&str]) -> (LogWriter, LogReader, mpsc::UnboundedReceiver<SessionId>) {
        let (sender, gone) = mpsc::unbounded_channel();
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let (writer, reader) = new(SessionId(7), Box::new(Letters::default()), &stops, sender);
        (writer, reader, gone)
    }

    fn write(writer: &mut LogWriter, text: &str) -> Option<Outcome> {
        text.bytes().enumerate().find_map(|(index, byte)| {
            let sampled = Sampled { token: TokenId(u32::from(byte)), logprobs: None };
            writer.append(Position(0).plus(index), sampled)
        })
    }

    fn text_and_outcome(records: &[Record]) -> (String, Option<Outcome>) {
        let mut text = String::new();
        let mut outcome = None;
        for record in records {
            assert_eq!(outcome, None, "nothing follows the end");
            match record {
                Record::Token { text: part, .. } => text += part,
                Record::End { text: part, outcome: end } => {
                    text += part;
                    outcome = Some(end.clone());
                }
            }
        }
        (text, outcome)
    }

    #[tokio::test]
    async fn a_stop_string_ends_the_log_at_its_token_and_is_not_shown() {
        let (mut writer, mut reader, _gone) = log(&["lo w"]);
        let hit = write(&mut writer, "hello world");
        assert_eq!(hit, Some(Outcome::StopString("lo w".to_owned())));
        drop(writer);
        let records = reader.next().await;
        assert_eq!(records.len(), 8, "seven tokens and one end: {records:?}");
        assert_eq!(text_and_outcome(&records), ("hel".to_owned(), hit));
    }

    #[tokio::test]
    async fn held_back_text_comes_with_the_end() {
        let (mut writer, mut reader, _gone) = log(&["lo w"]);
        write(&mut writer, "hello");
        writer.end(Outcome::Length);
        writer.end(Outcome::Stop);
        drop(writer);
        let records = reader.next().await;
        let (text, outcome) = text_and_outcome(&records);
        assert_eq!((text.as_str(), outcome), ("hello", Some(Outcome::Length)));
        let chars = records.iter().map(|record| match record {
            Record::Token { chars, .. } => *chars,
            Record::End { .. } => 0,
        });
        assert_eq!(chars.collect::<Vec<_>>(), [1, 1, 1, 1, 1, 0], "held back or not");
    }

    #[tokio::test]
    async fn a_torn_code_point_is_flushed_before_the_end() {
        let (mut writer, mut reader, _gone) = log(&[]);
        write(&mut writer, "a\0");
        writer.end(Outcome::Length);
        assert_eq!(text_and_outcome(&reader.next().await).0, "a\u{fffd}");
    }

    #[tokio::test]
    async fn a_lost_writer_still_ends_its_log_and_shows_nothing_it_held_back() {
        let (mut writer, mut reader, mut gone) = log(&["lo w"]);
        write(&mut writer, "hello");
        drop(writer);
        let (text, outcome) = text_and_outcome(&reader.next().await);
        assert_eq!(text, "hel");
        assert!(matches!(outcome, Some(Outcome::Failed(_))));
        drop(reader);
        assert!(gone.try_recv().is_err(), "a reader that saw the end cancels nothing");
    }

    #[tokio::test]
    async fn a_reader_that_leaves_early_says_so() {
        let (mut writer, mut reader, mut gone) = log(&[]);
        write(&mut writer, "abc");
        assert_eq!(reader.next().await.len(), 3);
        drop(reader);
        assert_eq!(gone.recv().await, Some(SessionId(7)));
        writer.end(Outcome::Cancelled);
    }

    #[tokio::test]
    async fn batches_are_bounded_and_complete() {
        let (mut writer, mut reader, _gone) = log(&[]);
        write(&mut writer, &"x".repeat(600));
        writer.end(Outcome::Length);
        let sizes =
            [reader.next().await.len(), reader.next().await.len(), reader.next().await.len()];
        assert_eq!(sizes, [256, 256, 89]);
    }
}
