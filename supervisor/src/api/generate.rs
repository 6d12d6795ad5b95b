//! From a body to an answer: what both routes do alike.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use shared::ids::TokenId;

use super::App;
use super::answer::{Head, Route, Tally};
use super::body::parse_object;
use super::choices::Choices;
use super::error::ApiError;
use super::fields::Fields;
use super::gate::Gate;
use super::request::Options;
use super::service::{Admitted, Words};
use super::sse::{Progress, Stream};
use super::whole::Whole;

/// A request that was read and turned into tokens.
#[derive(Debug)]
pub(super) struct Prepared {
    /// At least one prompt, each of at least one token.
    pub(super) prompts: Vec<Arc<[TokenId]>>,
    /// The common settings.
    pub(super) options: Options,
}

/// Reads the fields of one route.
pub(super) type Prepare = fn(Fields, &dyn Words, u32) -> Result<Prepared, ApiError>;

/// Answers a request.
pub(super) async fn answer(
    app: Arc<App>,
    headers: HeaderMap,
    body: Body,
    route: Route,
    prepare: Prepare,
) -> Result<Response, ApiError> {
    let body = app.bodies.read(&headers, body).await?;
    let gate = Gate::new(Arc::clone(&app.words), Arc::clone(&app.sessions), app.queue_limit);
    let (turn, choices_max) = (app.desk.turn(body.bytes.len()).await?, app.choices_max);
    // Tokenizing a long prompt takes a while; it must not hold up other connections.
    let prepared = tokio::task::spawn_blocking(move || {
        // The whole body, not its bytes alone: a large one holds its permit until here.
        let (body, _turn) = (body, turn);
        let fields = Fields::new(parse_object(&body.bytes)?);
        let prepared = prepare(fields, &gate, choices_max);
        gate.refusal().map_or(prepared, Err)
    })
    .await
    .map_err(|error| {
        tracing::error!(%error, "reading a request failed");
        ApiError::internal("this server could not read the request, by a fault of its own")
    })??;
    admit(&app, route, prepared).await
}

async fn admit(app: &App, route: Route, prepared: Prepared) -> Result<Response, ApiError> {
    let Prepared { prompts, options } = prepared;
    let admitted = Instant::now();
    let prompt_tokens = prompts.iter().map(|prompt| prompt.len()).sum();
    // All prompts at once: a list is accepted whole or not at all.
    let request = options.request(prompts, route.label());
    let Admitted { created, readers } = app.sessions.submit(request).await?;
    let head = Head::new(route, created, &app.model.name, &app.fingerprint);
    let (n_choices, choices) = (readers.len(), Choices::new(readers));
    let (tally, words) = (Tally::new(prompt_tokens, admitted), Arc::clone(&app.words));
    if options.stream {
        let stream = Stream {
            head,
            choices,
            n_choices,
            tally,
            words,
            end_tokens: options.end_tokens,
            include_usage: options.include_usage,
            progress: Progress::new(n_choices),
        };
        return Ok(stream.into_response());
    }
    let with_logprobs = options.sampling.logprobs.is_some();
    let end_tokens = options.end_tokens;
    let whole = Whole { head, choices, n_choices, tally, words, end_tokens, with_logprobs };
    whole.into_response().await
}
