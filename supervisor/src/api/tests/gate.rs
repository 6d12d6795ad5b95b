//! What is refused before its texts are turned into tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Map, Value, json};
use shared::config::Config;
use shared::ids::TokenId;
use shared::limits::LOGIT_BIAS_MAX;

use super::mock::{Script, Server};
use crate::api::error::ApiError;
use crate::api::fields::Fields;
use crate::api::gate::{Desk, Gate};
use crate::api::generate::Prepare;
use crate::api::service::{Later, Sessions, Words};
use crate::api::{chat, completions};
use crate::event_loop::{Control, ControlReply, NewRequest, Rejection};
use crate::status::{ServiceState, Status};
use crate::text::{ChatOptions, TemplateError};

/// Tokens of at most four bytes; counts the bytes it was made to encode.
#[derive(Default)]
struct Counting {
    encoded: AtomicUsize,
}

impl Words for Counting {
    fn encode_prompt(&self, text: &str) -> Vec<TokenId> {
        self.encode_plain(text)
    }

    fn encode_plain(&self, text: &str) -> Vec<TokenId> {
        self.encoded.fetch_add(text.len(), Ordering::Relaxed);
        vec![TokenId(1); text.len().div_ceil(4)]
    }

    fn encode_chat(
        &self,
        messages: &[Value],
        _options: &ChatOptions,
    ) -> Result<Vec<TokenId>, TemplateError> {
        Ok(self.encode_plain(messages[0]["content"].as_str().unwrap()))
    }

    fn encode_chat_if(
        &self,
        messages: &[Value],
        options: &ChatOptions,
        is_wanted: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<TokenId>, TemplateError> {
        let least = self.least_tokens(messages[0]["content"].as_str().unwrap(), true);
        if is_wanted(least) { self.encode_chat(messages, options) } else { Ok(Vec::new()) }
    }

    fn least_tokens(&self, text: &str, _parse_special: bool) -> usize {
        text.len().div_ceil(4)
    }

    fn end_tokens(&self) -> &[TokenId] {
        &[]
    }

    fn vocab_size(&self) -> usize {
        2
    }

    fn piece(&self, _token: TokenId) -> &[u8] {
        b"word"
    }
}

/// A service in some state, with a context of 512 tokens.
struct Standing(Status);

impl Standing {
    fn new(state: ServiceState, queued: u64) -> Arc<Self> {
        let mut status = super::mock::status(state);
        status.requests.queued = queued;
        Arc::new(Self(status))
    }
}

impl Sessions for Standing {
    fn submit(
        &self,
        _request: NewRequest,
    ) -> Later<'_, Result<crate::api::service::Admitted, Rejection>> {
        unreachable!("nothing is submitted here")
    }

    fn status(&self) -> Arc<Status> {
        Arc::new(self.0.clone())
    }

    fn control(&self, _command: Control) -> Later<'_, Result<ControlReply, String>> {
        unreachable!("nobody gives orders here")
    }
}

/// The refusal, and how many bytes were turned into tokens on the way to it.
fn ask(
    sessions: Arc<Standing>,
    prepare: Prepare,
    fields: &Map<String, Value>,
) -> (Result<(), ApiError>, usize) {
    let words = Arc::new(Counting::default());
    let gate = Gate::new(Arc::clone(&words) as Arc<dyn Words>, sessions, 64);
    let prepared = prepare(Fields::new(fields.clone()), &gate, 8).map(|_| ());
    let verdict = gate.refusal().map_or(prepared, Err);
    (verdict, words.encoded.load(Ordering::Relaxed))
}

fn texts(text: &str) -> Map<String, Value> {
    let fields = json!({"prompt": text, "messages": [{"role": "user", "content": text}]});
    fields.as_object().unwrap().clone()
}

#[test]
fn a_text_that_cannot_fit_is_refused_before_it_is_turned_into_tokens() {
    let serving = || Standing::new(ServiceState::Serving, 0);
    for prepare in [chat::prepare as Prepare, completions::prepare] {
        let (refused, encoded) = ask(serving(), prepare, &texts(&"a".repeat(4 * 512 - 3)));
        let body = refused.unwrap_err().body();
        assert_eq!(body["error"]["type"], "exceed_context_size_error");
        assert_eq!(body["error"]["n_prompt_tokens"], 512, "true for any way to cut the text");
        assert_eq!(body["error"]["n_ctx"], 512);
        assert!(body["error"]["message"].as_str().unwrap().contains("at least 512"), "{body}");
        assert_eq!(encoded, 0);
        let (passed, encoded) = ask(serving(), prepare, &texts(&"a".repeat(4 * 511)));
        assert!(passed.is_ok());
        assert_eq!(encoded, 4 * 511);
    }
    let mut list = texts("");
    list.insert("prompt".to_owned(), json!(["a".repeat(4 * 512), "b".repeat(100)]));
    let (refused, encoded) = ask(serving(), completions::prepare, &list);
    assert_eq!((refused.unwrap_err().status().as_u16(), encoded), (400, 0));
}

#[test]
fn a_service_that_cannot_take_it_says_so_before_the_work() {
    for (state, queued, status) in [
        (ServiceState::Serving, 64, 429),
        (ServiceState::Recycling, 64, 429),
        (ServiceState::Loading, 0, 503),
        (ServiceState::Degraded, 0, 503),
        (ServiceState::Held, 0, 503),
        (ServiceState::Draining, 0, 503),
    ] {
        for prepare in [chat::prepare as Prepare, completions::prepare] {
            let (refused, encoded) = ask(Standing::new(state, queued), prepare, &texts("hello"));
            assert_eq!(refused.unwrap_err().status().as_u16(), status, "{state:?}");
            assert_eq!(encoded, 0, "{state:?}");
        }
        // What can never be served is not told to come back.
        let hopeless = texts(&"a".repeat(4 * 512));
        let (refused, _) = ask(Standing::new(state, queued), completions::prepare, &hopeless);
        assert_eq!(refused.unwrap_err().status().as_u16(), 400, "{state:?}");
    }
    for (state, queued) in [(ServiceState::Serving, 63), (ServiceState::BackingOff, 0)] {
        let (passed, _) = ask(Standing::new(state, queued), chat::prepare, &texts("hello"));
        assert!(passed.is_ok(), "{state:?}");
    }
}

#[test]
fn biases_on_long_texts_cost_no_more_than_may_be_used() {
    let mut fields = texts("hello");
    let entries = vec![json!(["a".repeat(4 * LOGIT_BIAS_MAX / 2), 1]); 100];
    fields.insert("logit_bias".to_owned(), json!(entries));
    let serving = Standing::new(ServiceState::Serving, 0);
    let (refused, encoded) = ask(serving, completions::prepare, &fields);
    assert_eq!(refused.unwrap_err().body()["error"]["param"], "logit_bias");
    assert!(encoded <= 4 * LOGIT_BIAS_MAX + 5, "{encoded}");
}

#[tokio::test(start_paused = true)]
async fn requests_are_read_by_turns_and_small_ones_do_not_wait_for_large_ones() {
    const LARGE: usize = 1024 * 1024;
    let desk = Desk::new();
    let mut large = Vec::new();
    let refused = loop {
        match desk.turn(LARGE).await {
            Ok(turn) => large.push(turn),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.status().as_u16(), 503);
    let small = desk.turn(10).await;
    assert!(small.is_ok());
    large.pop();
    assert!(desk.turn(LARGE).await.is_ok());
}

#[tokio::test]
async fn a_refusal_of_the_router_is_json_and_keeps_its_status() {
    let script = Script::Steps(Vec::new());
    let server = Server::configured(script, ServiceState::Serving, Config::default());
    for (path, status) in [("/v1/models/%ff", 400), ("/v1/models/a/b", 404), ("/%ff", 404)] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.headers["content-type"], "application/json", "{path}");
        let body = answer.json();
        assert_eq!(body["error"]["code"], status, "{path}");
        assert!(!body["error"]["message"].as_str().unwrap().is_empty(), "{path}");
    }
}
