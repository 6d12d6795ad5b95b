//! Probes. None of them waits on the event loop or the worker.
//!
//! Readiness is proved by work: it is true only while a worker that has computed can serve, and
//! false the moment it cannot, also during a recycle, though requests are then accepted and wait.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::App;
use super::error::ApiError;
use crate::status::{ServiceState, Status};
use crate::worker::exit::public;

/// `GET /health`, `/v1/health`, `/readyz`.
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let status = app.sessions.status();
    let (kind, message) = match status.state {
        ServiceState::Serving => return Ok(Json(json!({ "status": "ok" }))),
        ServiceState::Loading => ("load", "Loading model"),
        ServiceState::Recycling => ("recycle", "the worker is being replaced; requests wait"),
        ServiceState::BackingOff => ("recycle", "the worker could not start and is tried again"),
        ServiceState::Degraded => ("degraded", "the worker failed again and again"),
        ServiceState::Held => ("held", "the operator holds the worker"),
        ServiceState::Draining => ("shutdown", "the service is stopping"),
    };
    let message = match &status.cause {
        Some(cause) => format!("{message}: {}", public(cause)),
        None => message.to_owned(),
    };
    Err(if status.state == ServiceState::Held {
        ApiError::held(message)
    } else {
        ApiError::unavailable(kind, message, Some(2))
    })
}

/// `GET /livez`: the process answers.
pub(super) async fn live() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// `GET /status`: the one status object.
pub(super) async fn status(State(app): State<Arc<App>>) -> Json<Status> {
    Json(Status::clone(&app.sessions.status()))
}
