//! Server-sent events, and answers put together from them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use serde_json::Value;

use crate::http::{Body, Client, Head};

/// An event stream, read one event at a time.
#[derive(Debug)]
pub struct Events {
    reader: BufReader<Body>,
    /// Comments seen so far.
    pub comments: usize,
}

impl Events {
    /// Over the body of an answer.
    #[must_use]
    pub fn new(body: Body) -> Self {
        Self { reader: BufReader::with_capacity(1, body), comments: 0 }
    }

    /// The data of the next event, or `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// If the connection fails or is cut.
    pub fn next_data(&mut self) -> std::io::Result<Option<String>> {
        let mut data: Option<String> = None;
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                if data.is_some() {
                    return Ok(data);
                }
            } else if line.starts_with(':') {
                self.comments += 1;
            } else if let Some(rest) = line.strip_prefix("data:") {
                let rest = rest.strip_prefix(' ').unwrap_or(rest);
                match &mut data {
                    None => data = Some(rest.to_owned()),
                    Some(data) => {
                        data.push('\n');
                        data.push_str(rest);
                    }
                }
            }
        }
    }
}

/// One choice of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choice {
    /// Its text.
    pub text: String,
    /// Every reason it ended for; a lawful answer has exactly one.
    pub ends: Vec<String>,
    /// Entries of `logprobs`, where asked for.
    pub logprobs: Vec<Value>,
}

/// An answer, put together from its events or read whole.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Ids seen; a lawful answer has exactly one.
    pub ids: Vec<String>,
    /// Choices by index.
    pub choices: BTreeMap<u64, Choice>,
    /// Error objects seen.
    pub errors: Vec<Value>,
    /// The `usage` object, if there was one.
    pub usage: Option<Value>,
    /// The `timings` object, if there was one.
    pub timings: Option<Value>,
    /// Whether `[DONE]` came.
    pub is_done: bool,
    /// Data events that came after `[DONE]`.
    pub after_done: usize,
    /// Comments between the events.
    pub comments: usize,
    /// Data events in all.
    pub events: usize,
}

impl Answer {
    /// The text of the first choice.
    #[must_use]
    pub fn text(&self) -> &str {
        self.choices.get(&0).map_or("", |choice| choice.text.as_str())
    }

    /// Why the first choice ended.
    #[must_use]
    pub fn end(&self) -> &str {
        let first = self.choices.get(&0).and_then(|choice| choice.ends.first());
        first.map_or("", String::as_str)
    }

    /// Takes in one object of a stream, or a whole answer.
    pub fn take(&mut self, object: &Value) {
        if let Some(error) = object.get("error").filter(|error| !error.is_null()) {
            self.errors.push(error.clone());
            return;
        }
        if let Some(id) = object["id"].as_str()
            && !self.ids.iter().any(|known| known == id)
        {
            self.ids.push(id.to_owned());
        }
        if object["usage"].is_object() {
            self.usage = Some(object["usage"].clone());
        }
        if object["timings"].is_object() {
            self.timings = Some(object["timings"].clone());
        }
        for part in object["choices"].as_array().into_iter().flatten() {
            let choice = self.choices.entry(part["index"].as_u64().unwrap_or(0)).or_default();
            let pieces = [&part["delta"]["content"], &part["message"]["content"], &part["text"]];
            choice.text.extend(pieces.into_iter().filter_map(Value::as_str));
            choice.ends.extend(part["finish_reason"].as_str().map(str::to_owned));
            let entries = part["logprobs"]["content"].as_array().into_iter().flatten();
            choice.logprobs.extend(entries.cloned());
        }
    }

    /// Checks law 1, exactly one end, for an answer of `choices` choices that did not fail.
    ///
    /// # Panics
    ///
    /// If it is broken.
    #[track_caller]
    pub fn assert_whole(&self, choices: usize) {
        assert_eq!(self.errors, Vec::<Value>::new(), "an error in the answer: {self:?}");
        assert_eq!(self.choices.len(), choices, "choices: {self:?}");
        for choice in self.choices.values() {
            assert_eq!(choice.ends.len(), 1, "each choice ends exactly once: {self:?}");
        }
        assert_eq!(self.ids.len(), 1, "one id from start to end: {self:?}");
        assert!(self.is_done, "a stream ends with [DONE]: {self:?}");
        assert_eq!(self.after_done, 0, "nothing comes after [DONE]: {self:?}");
    }
}

/// A streamed answer under way.
#[derive(Debug)]
pub struct AnswerStream {
    /// Status and header fields.
    pub head: Head,
    events: Events,
    /// What has arrived.
    pub answer: Answer,
}

impl AnswerStream {
    /// Posts `body` and reads the head of the answer.
    ///
    /// # Errors
    ///
    /// If the connection fails, or with the answer's text if it is no event stream.
    pub fn open(client: Client, path: &str, body: &Value) -> Result<Self, String> {
        let fields = [("content-type", "application/json")];
        let (head, mut reader) = client
            .send("POST", path, &fields, body.to_string().as_bytes())
            .map_err(|error| format!("POST {path}: {error}"))?;
        if head.status != 200 {
            let mut text = String::new();
            let _ = std::io::Read::read_to_string(&mut reader, &mut text);
            return Err(format!("POST {path}: status {}: {text}", head.status));
        }
        Ok(Self { head, events: Events::new(reader), answer: Answer::default() })
    }

    /// Takes in one event; false at the end of the stream.
    ///
    /// # Errors
    ///
    /// If the connection is cut or an event is not JSON.
    pub fn step(&mut self) -> Result<bool, String> {
        let data = self.events.next_data().map_err(|error| format!("the stream broke: {error}"))?;
        self.answer.comments = self.events.comments;
        let Some(data) = data else { return Ok(false) };
        if self.answer.is_done {
            self.answer.after_done += 1;
        }
        if data == "[DONE]" {
            self.answer.is_done = true;
            return Ok(true);
        }
        self.answer.events += 1;
        let object = serde_json::from_str(&data).map_err(|error| format!("{error}: {data}"))?;
        self.answer.take(&object);
        Ok(true)
    }

    /// Reads to the end.
    ///
    /// # Errors
    ///
    /// As [`AnswerStream::step`].
    pub fn finish(mut self) -> Result<Answer, String> {
        while self.step()? {}
        Ok(self.answer)
    }
}
