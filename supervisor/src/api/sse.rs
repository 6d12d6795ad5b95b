//! A streamed answer: the frames, their order, and what is written while nothing comes.
//!
//! ```text
//! chat     role delta, text deltas, finish, [usage], [DONE]
//! classic  text chunks, finish, [usage], [DONE]
//! failed   one `data: {"error": …}` frame, then the end, without [DONE]
//! ```
//!
//! Invariants: one JSON value per `data:` line; no `retry:` and no empty `data:`, which kill
//! clients; silence is broken by a comment, which none minds; each choice has one finish chunk.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};
use shared::limits::STREAM_SILENCE_MAX;
use tokio::time::{Instant, timeout_at};

use super::answer::{ChoiceParts, Head, Route, Tally, is_shown, opening_choice};
use super::choices::{Choices, finish_reason};
use super::error::ApiError;
use super::logprobs::{self, ClassicLists};
use super::service::Words;
use crate::session::log::{Failure, Outcome, Record};

const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The comment that breaks silence.
const PING: &[u8] = b": ping\n\n";

/// The end of a stream that went well.
const DONE: &str = "data: [DONE]\n\n";

/// One streamed answer.
pub(super) struct Stream {
    pub(super) head: Head,
    pub(super) choices: Choices,
    pub(super) n_choices: usize,
    pub(super) tally: Tally,
    pub(super) words: Arc<dyn Words>,
    pub(super) end_tokens: bool,
    pub(super) include_usage: bool,
    pub(super) progress: Progress,
}

/// How far a stream is.
pub(super) struct Progress {
    state: State,
    /// When silence would have lasted too long.
    ping_at: Instant,
    /// Characters of the tokens of each choice so far, also of those whose text is held back.
    chars: Vec<usize>,
    finished: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Running,
    Over,
}

impl Progress {
    /// Nothing sent yet.
    pub(super) fn new(n_choices: usize) -> Self {
        Self {
            state: State::Opening,
            ping_at: Instant::now() + STREAM_SILENCE_MAX,
            chars: vec![0; n_choices],
            finished: 0,
        }
    }
}

impl Stream {
    /// The response. Its body is computed as fast as the client takes it.
    pub(super) fn into_response(self) -> Response {
        let frames = futures_util::stream::unfold(self, |mut stream| async move {
            let bytes = stream.next_bytes().await?;
            Some((Ok::<_, Infallible>(bytes), stream))
        });
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (X_ACCEL_BUFFERING, HeaderValue::from_static("no")),
        ];
        (headers, Body::from_stream(frames)).into_response()
    }

    /// The next frames to write, one or several; `None` at the end.
    async fn next_bytes(&mut self) -> Option<Bytes> {
        let mut out = String::new();
        match self.progress.state {
            State::Over => return None,
            State::Opening => {
                self.progress.state = State::Running;
                self.open(&mut out);
            }
            State::Running => {}
        }
        while out.is_empty() {
            match timeout_at(self.progress.ping_at, self.choices.next()).await {
                Ok(Some((index, records))) => self.write_records(index, records, &mut out),
                Ok(None) => self.close(&mut out),
                Err(_) => {
                    self.progress.ping_at = Instant::now() + STREAM_SILENCE_MAX;
                    return Some(Bytes::from_static(PING));
                }
            }
        }
        self.progress.ping_at = Instant::now() + STREAM_SILENCE_MAX;
        Some(out.into())
    }

    fn open(&self, out: &mut String) {
        if self.head.route == Route::Chat {
            for index in 0..self.n_choices {
                self.write_chunk(opening_choice(index), out);
            }
        } else {
            // Classic answers have no opening chunk; a first byte proves that the request lives.
            out.push_str(": admitted\n\n");
        }
    }

    fn write_records(&mut self, index: usize, records: Vec<Record>, out: &mut String) {
        for record in records {
            match record {
                Record::Token { token, text, chars, logprobs, .. } => {
                    self.tally.count();
                    let is_shown = is_shown(token, self.words.end_tokens(), self.end_tokens);
                    let logprobs = logprobs.filter(|_| is_shown).map(|logprobs| {
                        let words = &*self.words;
                        match self.head.route {
                            Route::Chat => {
                                json!({"content": [logprobs::chat(words, token, &logprobs)]})
                            }
                            Route::Classic => {
                                let mut lists = ClassicLists::default();
                                let offset = self.progress.chars[index];
                                lists.push(words, token, &logprobs, offset);
                                lists.into_json()
                            }
                        }
                    });
                    self.progress.chars[index] += chars;
                    if !text.is_empty() || logprobs.is_some() {
                        self.write_text(index, text, logprobs.into(), out);
                    }
                }
                Record::End { text, outcome } => {
                    if !text.is_empty() {
                        self.write_text(index, text, Value::Null, out);
                    }
                    self.write_end(index, &outcome, out);
                    if self.progress.state == State::Over {
                        return;
                    }
                }
            }
        }
    }

    fn write_text(&self, index: usize, text: String, logprobs: Value, out: &mut String) {
        let parts = ChoiceParts { index, text: Some(text), logprobs, finish_reason: None };
        self.write_chunk(parts.into_chunk(self.head.route), out);
    }

    fn write_end(&mut self, index: usize, outcome: &Outcome, out: &mut String) {
        let reason = match finish_reason(outcome) {
            Ok(reason) => reason,
            Err(failure) => return self.fail(&failure, out),
        };
        self.progress.finished += 1;
        let parts =
            ChoiceParts { index, text: None, logprobs: Value::Null, finish_reason: Some(reason) };
        let choice = parts.into_chunk(self.head.route);
        let mut chunk = self.chunk(vec![choice]);
        if self.progress.finished == self.n_choices && !self.include_usage {
            self.add_totals(&mut chunk);
        }
        write_frame(&chunk, out);
    }

    /// One error frame ends the whole stream; choices still open are cancelled.
    fn fail(&mut self, failure: &Failure, out: &mut String) {
        let error = ApiError::from(failure).body();
        writeln!(out, "data: {error}\n").expect("writing to a String cannot fail");
        self.progress.state = State::Over;
        self.choices = Choices::new(Vec::new());
    }

    fn close(&mut self, out: &mut String) {
        if self.include_usage {
            let mut chunk = self.chunk(Vec::new());
            self.add_totals(&mut chunk);
            write_frame(&chunk, out);
        }
        out.push_str(DONE);
        self.progress.state = State::Over;
    }

    fn add_totals(&self, chunk: &mut Map<String, Value>) {
        // Chat clients get usage only if they asked; classic ones as llama-server gives it.
        if self.include_usage || self.head.route == Route::Classic {
            chunk.insert("usage".to_owned(), self.tally.usage());
        }
        chunk.insert("timings".to_owned(), self.tally.timings());
    }

    fn chunk(&self, choices: Vec<Value>) -> Map<String, Value> {
        let mut chunk = self.head.object(true, choices);
        if self.include_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        chunk
    }

    fn write_chunk(&self, choice: Value, out: &mut String) {
        write_frame(&self.chunk(vec![choice]), out);
    }
}

/// One frame. Line separators that JSON allows bare, but line readers split at, are escaped.
fn write_frame(object: &Map<String, Value>, out: &mut String) {
    const SEPARATORS: [char; 3] = ['\u{2028}', '\u{2029}', '\u{85}'];
    let json = serde_json::to_string(object).expect("plain values always serialize");
    out.push_str("data: ");
    if json.contains(SEPARATORS) {
        for character in json.chars() {
            if SEPARATORS.contains(&character) {
                write!(out, "\\u{:04x}", u32::from(character)).expect("cannot fail");
            } else {
                out.push(character);
            }
        }
    } else {
        out.push_str(&json);
    }
    out.push_str("\n\n");
}
