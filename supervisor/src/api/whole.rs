//! An answer in one piece. It takes as long as it takes, also through a recycle.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::answer::{ChoiceParts, Head, Route, Tally, is_shown};
use super::choices::{Choices, finish_reason};
use super::error::ApiError;
use super::logprobs::{self, ClassicLists};
use super::service::Words;
use crate::session::log::Record;

/// One choice as it grows.
#[derive(Default)]
struct Growing {
    text: String,
    /// Characters of its tokens so far, also of those whose text is held back.
    chars: usize,
    chat: Vec<Value>,
    classic: ClassicLists,
    finish_reason: Option<&'static str>,
}

/// An answer being gathered.
pub(super) struct Whole {
    pub(super) head: Head,
    pub(super) choices: Choices,
    pub(super) n_choices: usize,
    pub(super) tally: Tally,
    pub(super) words: Arc<dyn Words>,
    pub(super) end_tokens: bool,
    pub(super) with_logprobs: bool,
}

impl Whole {
    /// Reads every choice to its end.
    ///
    /// # Errors
    ///
    /// The first failure of a choice; the others are cancelled.
    pub(super) async fn into_response(mut self) -> Result<Response, ApiError> {
        let mut growing: Vec<Growing> = Vec::new();
        growing.resize_with(self.n_choices, Growing::default);
        while let Some((index, records)) = self.choices.next().await {
            for record in records {
                self.add(&mut growing[index], record)?;
            }
        }
        let choices = growing.into_iter().enumerate().map(|(index, choice)| {
            let logprobs = match (self.with_logprobs, self.head.route) {
                (false, _) => Value::Null,
                (true, Route::Chat) => json!({ "content": choice.chat, "refusal": null }),
                (true, Route::Classic) => choice.classic.into_json(),
            };
            let finish_reason = choice.finish_reason;
            ChoiceParts { index, text: Some(choice.text), logprobs, finish_reason }
                .into_whole(self.head.route)
        });
        let mut answer = self.head.object(false, choices.collect());
        answer.insert("usage".to_owned(), self.tally.usage());
        answer.insert("timings".to_owned(), self.tally.timings());
        Ok(Json(answer).into_response())
    }

    fn add(&mut self, choice: &mut Growing, record: Record) -> Result<(), ApiError> {
        match record {
            Record::Token { token, text, chars, logprobs, .. } => {
                self.tally.count();
                if let Some(logprobs) = logprobs
                    && is_shown(token, self.words.end_tokens(), self.end_tokens)
                {
                    let words = &*self.words;
                    match self.head.route {
                        Route::Chat => choice.chat.push(logprobs::chat(words, token, &logprobs)),
                        Route::Classic => {
                            choice.classic.push(words, token, &logprobs, choice.chars);
                        }
                    }
                }
                choice.chars += chars;
                choice.text.push_str(&text);
            }
            Record::End { text, outcome } => {
                choice.text.push_str(&text);
                let reason = finish_reason(&outcome);
                choice.finish_reason = Some(reason.map_err(|failure| ApiError::from(&failure))?);
            }
        }
        Ok(())
    }
}
