//! Refusals that do not come from our own code, such as those of axum's extractors, in the one
//! shape that clients know.

use axum::body::to_bytes;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};

use super::error::ApiError;

/// Longest message that is taken over, in bytes.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Middleware around the routes: an error keeps its status, and its body becomes JSON.
pub(super) async fn as_json(response: Response) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let json = HeaderValue::from_static("application/json");
    if !is_error || response.headers().get(header::CONTENT_TYPE) == Some(&json) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let message = to_bytes(body, MESSAGE_BYTES_MAX).await.unwrap_or_default();
    let message = match String::from_utf8_lossy(&message) {
        text if text.is_empty() => status.canonical_reason().unwrap_or("refused").to_owned(),
        text => text.into_owned(),
    };
    let (new, body) = ApiError::with_status(status, message).into_response().into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.extend(new.headers);
    Response::from_parts(parts, body)
}
