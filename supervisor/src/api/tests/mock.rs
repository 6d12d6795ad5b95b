//! A scripted event loop, a vocabulary of bytes, and a client for one request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use shared::config::Config;
use shared::ids::{Incarnation, Position, TokenId};
use shared::protocol::Logprobs;
use tokio::time::Instant;
use tower::ServiceExt as _;

use crate::api::service::{Admitted, Later, Reader, Sessions, Words};
use crate::api::{App, ModelCard, control_routes, routes};
use crate::event_loop::{Control, ControlReply, NewRequest, Rejection};
use crate::session::log::{Failure, Outcome, Phase, Record};
use crate::status::{ModelStatus, ServiceState, Status};
use crate::text::{ChatOptions, TemplateError};

/// One step of a scripted choice.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Records that are ready at once.
    Give(Vec<Record>),
    /// Silence.
    Wait(Duration),
}

/// What the script answers to every request.
#[derive(Debug, Clone)]
pub(super) enum Script {
    /// Each choice gets these steps.
    Steps(Vec<Step>),
    /// Nothing is admitted.
    Reject(Rejection),
}

/// The scripted event loop.
#[derive(Debug)]
pub(super) struct Mock {
    script: Script,
    pub(super) state: ServiceState,
    /// Every request that was handed in.
    pub(super) requests: Mutex<Vec<NewRequest>>,
    /// Readers dropped so far.
    pub(super) dropped: Arc<AtomicUsize>,
}

struct ScriptReader {
    steps: VecDeque<Step>,
    /// When the silence in front is over, once it has begun.
    until: Option<Instant>,
    dropped: Arc<AtomicUsize>,
}

impl Reader for ScriptReader {
    fn next(&mut self) -> Later<'_, Vec<Record>> {
        Box::pin(async {
            loop {
                match self.steps.front() {
                    Some(Step::Give(records)) => {
                        let records = records.clone();
                        self.steps.pop_front();
                        return records;
                    }
                    Some(Step::Wait(time)) => {
                        let until = *self.until.get_or_insert_with(|| Instant::now() + *time);
                        tokio::time::sleep_until(until).await;
                        self.until = None;
                        self.steps.pop_front();
                    }
                    None => std::future::pending().await,
                }
            }
        })
    }
}

impl Drop for ScriptReader {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Sessions for Mock {
    fn submit(&self, request: NewRequest) -> Later<'_, Result<Admitted, Rejection>> {
        Box::pin(async move {
            let n = request.prompts.len() * request.choices.len();
            self.requests.lock().unwrap().push(request);
            match &self.script {
                Script::Reject(rejection) => Err(rejection.clone()),
                Script::Steps(steps) => {
                    let readers = (0..n)
                        .map(|_| {
                            let dropped = Arc::clone(&self.dropped);
                            let steps = steps.clone().into();
                            Box::new(ScriptReader { steps, until: None, dropped })
                                as Box<dyn Reader>
                        })
                        .collect();
                    Ok(Admitted { created: 1_700_000_000, readers })
                }
            }
        })
    }

    fn status(&self) -> Arc<Status> {
        Arc::new(status(self.state))
    }

    fn control(&self, command: Control) -> Later<'_, Result<ControlReply, String>> {
        Box::pin(async move {
            match command {
                Control::Recycle { now } => Ok(ControlReply {
                    message: format!("now: {now}"),
                    incarnation: Some(Incarnation(3)),
                }),
                Control::Hold => Ok(ControlReply { message: "held".into(), incarnation: None }),
                Control::Release => Err("nothing is held".to_owned()),
            }
        })
    }
}

/// A status in that state.
pub(super) fn status(state: ServiceState) -> Status {
    let by_reason = BTreeMap::from([("SIG\"KILL".to_owned(), 2)]);
    Status {
        state,
        since: 1,
        cause: None,
        worker: crate::status::WorkerStatus::default(),
        recycles: crate::status::Recycles { total: 2, by_reason },
        requests: crate::status::Requests::default(),
        tokens: crate::status::Tokens::default(),
        model: ModelStatus { name: "tiny".to_owned(), n_ctx: 512, ..ModelStatus::default() },
        last_failure: None,
        retry_at: None,
        version: "0".to_owned(),
        uptime_s: 1.5,
    }
}

/// One token a byte; token 0 ends a reply.
#[derive(Debug)]
pub(super) struct ByteWords(Vec<u8>);

impl Default for ByteWords {
    fn default() -> Self {
        Self((0..=255).collect())
    }
}

impl Words for ByteWords {
    fn encode_prompt(&self, text: &str) -> Vec<TokenId> {
        self.encode_plain(text)
    }

    fn encode_plain(&self, text: &str) -> Vec<TokenId> {
        text.bytes().map(|byte| TokenId(byte.into())).collect()
    }

    fn encode_chat(
        &self,
        messages: &[Value],
        _options: &ChatOptions,
    ) -> Result<Vec<TokenId>, TemplateError> {
        if messages.iter().any(|message| message["role"] == "raise") {
            return Err(TemplateError::Raised("roles must alternate".to_owned()));
        }
        Ok(messages.iter().flat_map(|message| self.encode_plain(&message.to_string())).collect())
    }

    fn end_tokens(&self) -> &[TokenId] {
        &[TokenId(0)]
    }

    fn vocab_size(&self) -> usize {
        256
    }

    fn piece(&self, token: TokenId) -> &[u8] {
        self.0.get(token.index()..=token.index()).unwrap_or_default()
    }
}

/// A token record.
pub(super) fn token(id: u32, text: &str) -> Record {
    Record::Token {
        position: Position(9),
        token: TokenId(id),
        text: text.to_owned(),
        chars: text.chars().count(),
        logprobs: None,
    }
}

/// A token record with log-probabilities.
pub(super) fn token_with_logprobs(id: u32, text: &str) -> Record {
    let logprobs = Logprobs { chosen: -0.5, top: vec![(TokenId(id), -0.5), (TokenId(98), -1.0)] };
    Record::Token {
        position: Position(9),
        token: TokenId(id),
        text: text.to_owned(),
        chars: text.chars().count(),
        logprobs: Some(Box::new(logprobs)),
    }
}

/// An end.
pub(super) fn end(text: &str, outcome: Outcome) -> Record {
    Record::End { text: text.to_owned(), outcome }
}

/// A failure that a resend cannot mend.
pub(super) fn failure() -> Failure {
    Failure {
        kind: "nonfinite",
        message: "position 7 is not finite".to_owned(),
        deterministic: true,
        position: Some(Position(7)),
        phase: Phase::Decode,
        attempts: 3,
        incarnation: Incarnation(4),
        retryable: false,
    }
}

/// "Hi é!" in four tokens, one of which completes no text, and an end token.
pub(super) fn greeting() -> Vec<Step> {
    vec![
        Step::Give(vec![token(72, "H"), token(105, "i ")]),
        Step::Give(vec![token(195, ""), token(169, "é")]),
        Step::Give(vec![token(0, ""), end("!", Outcome::Stop)]),
    ]
}

/// The API over a script.
pub(super) struct Server {
    pub(super) mock: Arc<Mock>,
    app: Arc<App>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The `data:` values of a stream, parsed; `[DONE]` as a string.
    pub(super) fn events(&self) -> Vec<Value> {
        self.text()
            .split_terminator("\n\n")
            .filter_map(|block| block.strip_prefix("data: "))
            .map(|data| serde_json::from_str(data).unwrap_or_else(|_| json!(data)))
            .collect()
    }
}

impl Server {
    pub(super) fn new(script: Script) -> Self {
        Self::configured(script, ServiceState::Serving, Config::default())
    }

    pub(super) fn configured(script: Script, state: ServiceState, config: Config) -> Self {
        let mock =
            Arc::new(Mock { script, state, requests: Mutex::default(), dropped: Arc::default() });
        let model = ModelCard { name: "tiny".to_owned(), ..ModelCard::default() };
        let sessions = Arc::clone(&mock) as Arc<dyn Sessions>;
        let app = App::new(sessions, Arc::new(ByteWords::default()), model, &config);
        Self { mock, app: Arc::new(app) }
    }

    pub(super) async fn send(&self, request: Request<Body>) -> Answer {
        read(routes(Arc::clone(&self.app)).oneshot(request).await.unwrap()).await
    }

    pub(super) async fn send_control(&self, request: Request<Body>) -> Answer {
        read(control_routes(Arc::clone(&self.app)).oneshot(request).await.unwrap()).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(super) async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        self.send(Request::post(path).body(body.into()).unwrap()).await
    }

    pub(super) async fn chat(&self, mut fields: Value) -> Answer {
        if fields.get("messages").is_none() {
            fields["messages"] = json!([{"role": "user", "content": "hi"}]);
        }
        self.post("/v1/chat/completions", fields.to_string()).await
    }

    pub(super) async fn completion(&self, fields: Value) -> Answer {
        self.post("/v1/completions", fields.to_string()).await
    }
}

async fn read(response: axum::response::Response) -> Answer {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status, headers: parts.headers, body }
}
