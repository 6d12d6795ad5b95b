//! The HTTP API: routes and what they share.
//!
//! The wire contract is OpenAI's, with llama-server's additions. A request is read, checked,
//! templated, tokenized and admitted before a status line is sent; a 4xx is always the client's to
//! mend. A stream's headers leave at once after admission, and a byte follows at least every
//! `STREAM_SILENCE_MAX`, also in the queue, in prefill and through a recycle.
//!
//! Writers read token logs by cursor, only as fast as their client takes bytes; nothing is queued
//! per client.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use axum::middleware::{from_fn, from_fn_with_state, map_response};
use axum::routing::{get, post};
use shared::config::Config;

mod access;
mod answer;
mod body;
mod chat;
mod choices;
mod completions;
pub mod connection;
mod control;
mod crowd;
pub mod error;
mod fields;
mod gate;
mod generate;
mod guard;
mod health;
mod logprobs;
mod metrics;
mod models;
mod rejections;
mod request;
pub mod service;
mod socket;
mod sse;
#[cfg(test)]
mod tests;
mod whole;

pub use models::ModelCard;

use body::BodyReader;
use error::ApiError;
use gate::Desk;
use service::{Sessions, Words};

/// What all routes share.
pub struct App {
    sessions: Arc<dyn Sessions>,
    words: Arc<dyn Words>,
    model: ModelCard,
    choices_max: u32,
    api_keys: Vec<String>,
    listen: SocketAddr,
    bodies: BodyReader,
    desk: Desk,
    queue_limit: u32,
    fingerprint: String,
    started: SystemTime,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("model", &self.model).finish_non_exhaustive()
    }
}

impl App {
    /// The state of an API that serves `model` through `sessions`.
    #[must_use]
    pub fn new(
        sessions: Arc<dyn Sessions>,
        words: Arc<dyn Words>,
        model: ModelCard,
        config: &Config,
    ) -> Self {
        Self {
            sessions,
            words,
            fingerprint: model.fingerprint(),
            model,
            choices_max: config.choices_max,
            api_keys: config.api_keys.clone(),
            listen: config.listen,
            bodies: BodyReader::new(Duration::from_secs_f64(config.client_stall_timeout_s)),
            desk: Desk::new(),
            queue_limit: config.queue_limit,
            started: SystemTime::now(),
        }
    }
}

/// The API as it is served on the network.
pub fn routes(app: Arc<App>) -> Router {
    public(Arc::clone(&app))
        .layer(from_fn_with_state(app, guard::check))
        .layer(map_response(rejections::as_json))
        .layer(from_fn(access::log))
}

/// The API as it is served on the control socket: operator's orders too, and no keys, since only
/// the socket's owner can open it.
pub fn control_routes(app: Arc<App>) -> Router {
    let admin = Router::new()
        .route("/admin/recycle", post(control::recycle))
        .route("/admin/hold", post(control::hold))
        .route("/admin/release", post(control::release))
        .with_state(Arc::clone(&app));
    public(app).merge(admin).layer(map_response(rejections::as_json)).layer(from_fn(access::log))
}

fn public(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(models::list))
        .route("/models", get(models::list))
        .route("/v1/models/{*id}", get(models::show))
        .route("/health", get(health::health))
        .route("/v1/health", get(health::health))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::health))
        .route("/status", get(health::status))
        .route("/metrics", get(metrics::metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app)
}

async fn not_found(uri: Uri) -> ApiError {
    ApiError::not_found(format!("there is no route {}", clip_path(uri.path())))
}

async fn method_not_allowed(State(_): State<Arc<App>>, uri: Uri) -> ApiError {
    let path = clip_path(uri.path());
    ApiError::method_not_allowed(format!("{path} does not take this method"))
}

fn clip_path(path: &str) -> &str {
    &path[..path.floor_char_boundary(128)]
}
