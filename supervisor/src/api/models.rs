//! `GET /v1/models`: the one model, known from the weight file's header before any worker runs.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::App;
use super::error::ApiError;

/// What the API says about the model.
#[derive(Debug, Clone, Default, Hash)]
pub struct ModelCard {
    /// The name clients see.
    pub name: String,
    /// Architecture of the weight file.
    pub arch: String,
    /// Context length it was trained for, in tokens; 0 if unknown.
    pub n_ctx_train: u64,
    /// Vocabulary size.
    pub n_vocab: u64,
    /// Width of the residual stream; 0 if unknown.
    pub n_embd: u64,
    /// Parameters in all tensors.
    pub n_params: u64,
    /// Weight bytes.
    pub size_bytes: u64,
}

impl ModelCard {
    /// `system_fingerprint`: changes with the model and the build, never over a recycle. The
    /// leading "b" is llama-server's.
    #[must_use]
    pub(super) fn fingerprint(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        format!("b{}-{:016x}", env!("CARGO_PKG_VERSION"), hasher.finish())
    }
}

/// `GET /v1/models` and `/models`.
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [entry(&app)] }))
}

/// `GET /v1/models/{id}`.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if id == app.model.name {
        Ok(Json(entry(&app)))
    } else {
        Err(ApiError::not_found(format!("the only model here is `{}`", app.model.name)))
    }
}

fn entry(app: &App) -> Value {
    let model = &app.model;
    let created = app.started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let n_ctx = app.sessions.status().model.n_ctx;
    json!({
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": "strata",
        "aliases": [model.name],
        "tags": [],
        "meta": {
            "arch": model.arch,
            "n_vocab": model.n_vocab,
            "n_ctx": n_ctx,
            "n_ctx_train": model.n_ctx_train,
            "n_embd": model.n_embd,
            "n_params": model.n_params,
            "size": model.size_bytes,
        },
    })
}
