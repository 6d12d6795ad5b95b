//! The errors of the API: the only place where a status code is chosen.
//!
//! A body is `{"error": {"message", "type", "code", "param", …}}`. `code` is the status as a
//! number, as llama-server has it. A failure adds `kind`, `deterministic`, `position`, `phase`,
//! `attempts`, `incarnation` and `retryable`, which clients that do not know them ignore.
//!
//! `x-should-retry: false` keeps SDKs from sending a request again that can only fail again.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::event_loop::Rejection;
use crate::session::log::Failure;
use crate::worker::exit::public;

/// SDKs give up at once when they are told to wait longer than two minutes; a minute is safe.
const RETRY_AFTER_S_MAX: u32 = 60;

const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// An error as a client sees it. Behind a pointer, since every parser's result may hold one.
#[derive(Debug, Clone)]
pub struct ApiError(Box<Parts>);

#[derive(Debug, Clone)]
struct Parts {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    extra: Map<String, Value>,
    retry_after_s: Option<u32>,
    should_retry: Option<bool>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            status,
            kind,
            message: message.into(),
            param: None,
            extra: Map::new(),
            retry_after_s: None,
            should_retry: None,
        }))
    }

    /// The request cannot be understood.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// One field of the request cannot be used.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let mut error = Self::invalid(message);
        error.0.param = Some(param.into());
        error
    }

    /// The prompt does not fit the context.
    pub fn too_long(n_prompt: u32, n_ctx: u32) -> Self {
        let message = format!(
            "the request has {n_prompt} prompt tokens, but the context holds {n_ctx}: shorten the \
             prompt, or start the server with a larger `--context`"
        );
        let mut error = Self::new(StatusCode::BAD_REQUEST, "exceed_context_size_error", message);
        error.0.extra.insert("n_prompt_tokens".to_owned(), n_prompt.into());
        error.0.extra.insert("n_ctx".to_owned(), n_ctx.into());
        error
    }

    /// A prompt so long that its tokens were not counted.
    pub fn far_too_long(n_prompt_min: u32, n_ctx: u32) -> Self {
        let mut error = Self::too_long(n_prompt_min, n_ctx);
        error.0.message = format!(
            "the request has at least {n_prompt_min} prompt tokens, but the context holds {n_ctx}: \
             shorten the prompt, or start the server with a larger `--context`"
        );
        error
    }

    /// A refusal of code that is not ours, which chose the status.
    pub fn with_status(status: StatusCode, message: impl Into<String>) -> Self {
        let kind = match status {
            StatusCode::NOT_FOUND => "not_found_error",
            _ if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        Self::new(status, kind, message)
    }

    /// No key, or a wrong one.
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "authentication_error",
            "a valid API key is needed: `Authorization: Bearer KEY` or `x-api-key: KEY`",
        )
    }

    /// The request comes from a place that may not ask.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// No such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// The path exists, but not with this method.
    pub fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// The body is larger than allowed.
    pub fn too_large(bytes_max: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            format!("the body is larger than {bytes_max} bytes"),
        )
    }

    /// The client stopped sending its body.
    pub fn body_timeout() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "invalid_request_error",
            "the body did not arrive in time",
        )
    }

    /// The model cannot do what the route needs.
    pub fn not_supported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// A broken invariant of this server.
    pub fn internal(message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message);
        error.0.should_retry = Some(false);
        error
    }

    /// The service cannot take the request now.
    pub fn unavailable(kind: &str, message: impl Into<String>, retry_after_s: Option<u32>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        error.0.extra.insert("kind".to_owned(), kind.into());
        error.0.retry_after_s = retry_after_s;
        error
    }

    /// The worker is held: nothing but an order changes that, so coming back soon is no use.
    pub fn held(message: impl Into<String>) -> Self {
        let mut error = Self::unavailable("held", message, None);
        error.0.should_retry = Some(false);
        error
    }

    /// An operator's order that makes no sense now.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_request_error", message)
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> Value {
        let mut error = Map::new();
        error.insert("message".to_owned(), self.0.message.as_str().into());
        error.insert("type".to_owned(), self.0.kind.into());
        error.insert("code".to_owned(), self.0.status.as_u16().into());
        error.insert("param".to_owned(), self.0.param.as_deref().into());
        error.extend(self.0.extra.clone());
        json!({ "error": error })
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        let message = rejection.to_string();
        match rejection {
            Rejection::QueueFull { retry_after_s, .. } => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                let mut error = Self::new(status, "rate_limit_error", message);
                error.0.retry_after_s = Some(retry_after_s);
                error
            }
            Rejection::Loading { retry_after_s, .. } => {
                Self::unavailable("load", format!("Loading model: {message}"), Some(retry_after_s))
            }
            Rejection::Degraded { retry_after_s, .. } => {
                Self::unavailable("degraded", message, Some(retry_after_s))
            }
            Rejection::Held { .. } => Self::held(message),
            Rejection::Draining => Self::unavailable("shutdown", message, Some(1)),
            Rejection::TooLong { n_prompt, n_ctx } => Self::too_long(n_prompt, n_ctx),
        }
    }
}

impl From<&Failure> for ApiError {
    fn from(failure: &Failure) -> Self {
        // Held is no fault of this server's, though only an order ends it.
        let (status, kind) = if failure.retryable || failure.kind == "held" {
            (StatusCode::SERVICE_UNAVAILABLE, "unavailable_error")
        } else {
            (StatusCode::INTERNAL_SERVER_ERROR, "server_error")
        };
        let mut error = Self::new(status, kind, public(&failure.message));
        let position = failure.position.map(|position| position.0);
        error.0.extra = Map::from_iter([
            ("kind".to_owned(), failure.kind.into()),
            ("deterministic".to_owned(), failure.deterministic.into()),
            ("position".to_owned(), position.into()),
            ("phase".to_owned(), failure.phase.name().into()),
            ("attempts".to_owned(), failure.attempts.into()),
            ("incarnation".to_owned(), failure.incarnation.0.into()),
            ("retryable".to_owned(), failure.retryable.into()),
        ]);
        error.0.retry_after_s = failure.retryable.then_some(1);
        error.0.should_retry = (failure.deterministic || !failure.retryable).then_some(false);
        error
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.0.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.0.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.clamp(1, RETRY_AFTER_S_MAX).into());
        }
        if let Some(should_retry) = self.0.should_retry {
            let value = if should_retry { "true" } else { "false" };
            headers.insert(X_SHOULD_RETRY, HeaderValue::from_static(value));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header::RETRY_AFTER;
    use axum::response::IntoResponse;
    use shared::ids::{Incarnation, Position};

    use super::ApiError;
    use crate::event_loop::Rejection;
    use crate::session::log::{Failure, Phase};

    fn failure(deterministic: bool) -> Failure {
        Failure {
            kind: "nonfinite",
            message: "position 7 is not finite in three processes".to_owned(),
            deterministic,
            position: Some(Position(7)),
            phase: Phase::Prefill,
            attempts: 3,
            incarnation: Incarnation(4),
            retryable: !deterministic,
        }
    }

    #[test]
    fn a_deterministic_failure_tells_clients_not_to_resend() {
        let error = ApiError::from(&failure(true));
        assert_eq!(error.status().as_u16(), 500);
        let body = error.body();
        assert_eq!(body["error"]["position"], 7);
        assert_eq!(body["error"]["phase"], "prefill");
        let response = error.into_response();
        assert_eq!(response.headers()["x-should-retry"], "false");
        assert!(!response.headers().contains_key(RETRY_AFTER));
    }

    #[test]
    fn a_passing_failure_says_when_to_come_back_and_never_beyond_a_minute() {
        let response = ApiError::from(&failure(false)).into_response();
        assert_eq!(response.status().as_u16(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert!(!response.headers().contains_key("x-should-retry"));
        let rejection = Rejection::Degraded { cause: "disk".to_owned(), retry_after_s: 4000 };
        assert_eq!(ApiError::from(rejection).into_response().headers()[RETRY_AFTER], "60");
    }

    #[test]
    fn a_service_that_is_held_sends_nobody_back_for_more() {
        let failure = Failure { kind: "held", retryable: false, ..failure(false) };
        let rejection = Rejection::Held { cause: "held by the operator".to_owned() };
        for error in [ApiError::from(&failure), ApiError::from(rejection)] {
            let response = error.into_response();
            assert_eq!(response.status().as_u16(), 503);
            assert_eq!(response.headers()["x-should-retry"], "false");
            assert!(!response.headers().contains_key(RETRY_AFTER));
        }
    }
}
