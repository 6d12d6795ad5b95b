//! The operator's orders, on the control socket only.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::App;
use super::body::parse_object;
use super::error::ApiError;
use super::fields::Fields;
use crate::event_loop::Control;

type Answer = Result<Json<Value>, ApiError>;

/// `POST /admin/recycle`, with `{"now": true}` to replay instead of letting streams finish.
pub(super) async fn recycle(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Answer {
    let body = app.bodies.read(&headers, body).await?;
    let now = if body.bytes.is_empty() {
        false
    } else {
        Fields::new(parse_object(&body.bytes)?).boolean("now")?.unwrap_or(false)
    };
    order(&app, Control::Recycle { now }).await
}

/// `POST /admin/hold`.
pub(super) async fn hold(State(app): State<Arc<App>>) -> Answer {
    order(&app, Control::Hold).await
}

/// `POST /admin/release`.
pub(super) async fn release(State(app): State<Arc<App>>) -> Answer {
    order(&app, Control::Release).await
}

async fn order(app: &App, command: Control) -> Answer {
    let reply = app.sessions.control(command).await.map_err(ApiError::refused)?;
    let incarnation = reply.incarnation.map(|incarnation| incarnation.0);
    Ok(Json(json!({ "message": reply.message, "incarnation": incarnation })))
}
