//! HTTP over the control socket.

use std::path::PathBuf;
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use super::CtlError;

/// How long the supervisor may take to answer what it answers from memory.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Speaks to one supervisor; each request has its own connection.
#[derive(Debug)]
pub(super) struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of that socket.
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// `GET`, as JSON.
    pub(super) async fn get(&self, path: &str) -> Result<Value, CtlError> {
        self.within(self.json(Method::GET, path, &Value::Null)).await
    }

    /// `POST`, as JSON; null sends an empty body.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, CtlError> {
        self.within(self.json(Method::POST, path, body)).await
    }

    /// `POST` whose answer is read piece by piece.
    ///
    /// # Errors
    ///
    /// Also if the answer's status is not 200.
    pub(super) async fn stream(&self, path: &str, body: &Value) -> Result<Incoming, CtlError> {
        let response = self.send(Method::POST, path, body).await?;
        if response.status() == StatusCode::OK {
            return Ok(response.into_body());
        }
        Err(Self::error(response).await)
    }

    async fn within<T>(
        &self,
        answer: impl Future<Output = Result<T, CtlError>>,
    ) -> Result<T, CtlError> {
        let unreachable = |_| CtlError::Unreachable {
            socket: self.socket.clone(),
            reason: format!("no answer within {} s", ANSWER_TIME_MAX.as_secs()),
        };
        tokio::time::timeout(ANSWER_TIME_MAX, answer).await.map_err(unreachable)?
    }

    async fn json(&self, method: Method, path: &str, body: &Value) -> Result<Value, CtlError> {
        let response = self.send(method, path, body).await?;
        if response.status() != StatusCode::OK {
            return Err(Self::error(response).await);
        }
        let body = response.into_body().collect().await.map_err(broken)?.to_bytes();
        serde_json::from_slice(&body)
            .map_err(|error| CtlError::Failed(format!("the answer makes no sense: {error}")))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> Result<Response<Incoming>, CtlError> {
        let unreachable =
            |reason: String| CtlError::Unreachable { socket: self.socket.clone(), reason };
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        // Its errors come back through the request.
        tokio::spawn(connection);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .expect("the parts are constants");
        sender.send_request(request).await.map_err(|error| unreachable(error.to_string()))
    }

    /// What an answer other than 200 means.
    async fn error(response: Response<Incoming>) -> CtlError {
        let status = response.status();
        let body = match response.into_body().collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return broken(error),
        };
        let message = serde_json::from_slice::<Value>(&body)
            .ok()
            .and_then(|body| Some(body["error"]["message"].as_str()?.to_owned()))
            .unwrap_or_else(|| format!("status {status}"));
        let is_refusal = status.is_client_error() || status == StatusCode::SERVICE_UNAVAILABLE;
        if is_refusal { CtlError::Refused(message) } else { CtlError::Failed(message) }
    }
}

fn broken(error: hyper::Error) -> CtlError {
    CtlError::Failed(format!("the answer broke off: {error}"))
}
