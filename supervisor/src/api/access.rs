//! The access log: one event per request, when its answer is over, and `x-request-id`.

use std::time::Instant;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt as _;

use super::request::random;

/// Longest path that is logged, in bytes.
const PATH_BYTES_MAX: usize = 256;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Writes its event when dropped: at the end of the body, or when the client is gone.
struct Entry {
    method: Method,
    path: String,
    request_id: String,
    started: Instant,
    status: Option<StatusCode>,
    is_whole: bool,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let status = self.status.map_or(0, |status| status.as_u16());
        let (method, path, request_id) = (&self.method, &self.path, &self.request_id);
        let end = if self.is_whole { "complete" } else { "client gone" };
        // Probes come every few seconds for ever; what a client sends on purpose is news.
        if self.method == Method::GET && self.is_whole {
            tracing::debug!(%method, %path, status, %request_id, duration_ms, end, "http request");
        } else {
            tracing::info!(%method, %path, status, %request_id, duration_ms, end, "http request");
        }
    }
}

/// Middleware around everything.
pub(super) async fn log(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let mut entry = Entry {
        method: request.method().clone(),
        path: path[..path.floor_char_boundary(PATH_BYTES_MAX)].to_owned(),
        request_id: format!("req_{:016x}", random()),
        started: Instant::now(),
        status: None,
        is_whole: false,
    };
    let mut response = next.run(request).await;
    entry.status = Some(response.status());
    let id = HeaderValue::from_str(&entry.request_id).expect("letters and digits");
    response.headers_mut().insert(X_REQUEST_ID, id);
    response.map(|body| attach(body, entry))
}

/// The same body, with the entry living as long as it. A body of known length keeps it.
fn attach(body: Body, mut entry: Entry) -> Body {
    use axum::body::HttpBody as _;
    if body.size_hint().exact().is_some() {
        // Already complete in memory: what is left is the connection's to write.
        entry.is_whole = true;
        return body;
    }
    let frames = body.into_data_stream();
    Body::from_stream(futures_util::stream::unfold(
        (frames, entry),
        |(mut frames, mut entry)| async move {
            match frames.next().await {
                Some(frame) => Some((frame, (frames, entry))),
                None => {
                    entry.is_whole = true;
                    drop(entry);
                    None
                }
            }
        },
    ))
}
