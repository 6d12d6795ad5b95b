//! Reading a request body within bounds, and counting its values before it is parsed.
//!
//! Small bodies are read freely. A large one needs a permit, held until its prompt is tokenized,
//! so that memory stays bounded whatever many clients send at once.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt as _;
use serde_json::{Map, Value};
use shared::limits::BODY_BYTES_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// Bodies up to this size need no permit.
const SMALL_BYTES_MAX: usize = 256 * 1024;

/// Large bodies handled at once.
const LARGE_BODIES_MAX: usize = 2;

/// JSON values in one body. A parsed value takes up to 72 bytes, so this bounds it to 150 MB.
const VALUES_MAX: usize = 2 * 1024 * 1024;

/// Bytes of a refused body that are read and dropped, so that a client that sends before it reads
/// sees the answer instead of a reset connection.
const DRAIN_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;

/// How long a refused body is drained.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// A body, and the permit it holds if it is large.
#[derive(Debug)]
pub(super) struct Request {
    /// The bytes, at most `BODY_BYTES_MAX`.
    pub(super) bytes: Bytes,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Reads bodies; one for the whole API.
#[derive(Debug)]
pub(super) struct BodyReader {
    large: Arc<Semaphore>,
    /// A client that sends nothing for this long is refused.
    stall: Duration,
}

impl BodyReader {
    /// A reader that gives up on clients that send nothing for `stall`.
    #[must_use]
    pub(super) fn new(stall: Duration) -> Self {
        Self { large: Arc::new(Semaphore::new(LARGE_BODIES_MAX)), stall }
    }

    /// Reads a whole body.
    ///
    /// # Errors
    ///
    /// 413 for one over `BODY_BYTES_MAX`, 408 for one that stalls, 400 for one that breaks off.
    pub(super) async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Request, ApiError> {
        let announced = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse::<u64>().ok())
            .map(|length| usize::try_from(length).unwrap_or(usize::MAX));
        if announced.is_some_and(|length| length > BODY_BYTES_MAX) {
            // A client that asked first has sent nothing yet, and need not.
            if !headers.contains_key(header::EXPECT) {
                drain(body).await;
            }
            return Err(ApiError::too_large(BODY_BYTES_MAX));
        }
        self.read_announced(announced.unwrap_or(0), body).await
    }

    async fn read_announced(&self, announced: usize, mut body: Body) -> Result<Request, ApiError> {
        let mut bytes = Vec::with_capacity(announced.min(SMALL_BYTES_MAX));
        let mut permit = None;
        if announced > SMALL_BYTES_MAX {
            permit = Some(self.large_permit().await);
        }
        loop {
            let frame = tokio::time::timeout(self.stall, body.frame())
                .await
                .map_err(|_| ApiError::body_timeout())?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|_| ApiError::invalid("the body broke off"))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > BODY_BYTES_MAX {
                drop(bytes);
                drain(body).await;
                return Err(ApiError::too_large(BODY_BYTES_MAX));
            }
            if permit.is_none() && bytes.len() + data.len() > SMALL_BYTES_MAX {
                permit = Some(self.large_permit().await);
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Request { bytes: bytes.into(), _permit: permit })
    }

    async fn large_permit(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.large).acquire_owned().await.expect("the semaphore is never closed")
    }
}

/// Reads and drops what is left of a body, within bounds.
async fn drain(mut body: Body) {
    let dropped = async {
        let mut left = DRAIN_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    // Past the time the connection is closed with the answer unread: the client was told.
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, dropped).await;
}

/// The JSON object in a body.
///
/// # Errors
///
/// 400 for bytes that are not UTF-8, not JSON, hold too many values, or are not an object.
pub(super) fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        ApiError::invalid(format!("the body is not UTF-8: byte {} is wrong", error.valid_up_to()))
    })?;
    if text.trim_ascii().is_empty() {
        return Err(ApiError::invalid("the body is empty; a JSON object is expected"));
    }
    if count_values(bytes) > VALUES_MAX {
        return Err(ApiError::invalid(format!("the body has more than {VALUES_MAX} JSON values")));
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(ApiError::invalid("the body is not a JSON object")),
        Err(error) => Err(ApiError::invalid(format!("the body is not valid JSON: {error}"))),
    }
}

/// An upper bound of the values in a JSON text: separators and openings outside strings.
fn count_values(bytes: &[u8]) -> usize {
    let (mut count, mut in_string, mut is_escaped) = (1, false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::{VALUES_MAX, count_values, parse_object};

    #[test]
    fn strings_do_not_count_as_values() {
        assert_eq!(count_values(br#"{"a": "[,,\",,", "b": [1, 2]}"#), 5);
    }

    #[test]
    fn bodies_that_are_no_object_are_refused() {
        let many = format!("{{\"a\":[{}1]}}", "1,".repeat(VALUES_MAX));
        let deep = "[".repeat(5000);
        let bad: [&[u8]; 9] = [
            b"",
            b"  ",
            b"{",
            b"[1]",
            b"\xff\xfe",
            br#"{"a":"\ud800"}"#,
            br#"{"a":NaN}"#,
            many.as_bytes(),
            deep.as_bytes(),
        ];
        for bytes in bad {
            assert_eq!(parse_object(bytes).unwrap_err().status().as_u16(), 400);
        }
        assert_eq!(parse_object(br#"{"a":1,"a":2}"#).unwrap()["a"], 2);
    }
}
