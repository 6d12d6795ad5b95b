//! Reading a request body within bounds, and counting its values before it is parsed.
//!
//! Small bodies are read freely. One of which more has arrived needs a permit, held until its
//! prompt is tokenized, so that memory stays bounded whatever many clients send at once. What is
//! only announced costs nothing, and who holds a permit has to go on sending.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt as _;
use serde_json::{Map, Value};
use shared::limits::BODY_BYTES_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::error::ApiError;

/// Bodies up to this size need no permit.
const SMALL_BYTES_MAX: usize = 256 * 1024;

/// Large bodies held at once.
const LARGE_BODIES_MAX: usize = 8;

/// How long a large body waits for a permit.
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(10);

/// When a client that found no permit should come back, in seconds.
const PERMIT_RETRY_S: u32 = 10;

/// How far a client may fall behind [`RATE_MIN`].
const LAG_MAX: Duration = Duration::from_secs(30);

/// What a client must send in the long run, in bytes per second.
const RATE_MIN: u32 = 64 * 1024;

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
    /// 413 for one over `BODY_BYTES_MAX`, 408 for one that stalls or crawls, 400 for one that
    /// breaks off, 503 for a large one while too many others are held.
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
        self.read_frames(announced.unwrap_or(0), body).await
    }

    async fn read_frames(&self, announced: usize, mut body: Body) -> Result<Request, ApiError> {
        let mut bytes = Vec::with_capacity(announced.min(SMALL_BYTES_MAX));
        let mut permit = None;
        let mut deadline = Instant::now() + LAG_MAX;
        loop {
            let until = deadline.min(Instant::now() + self.stall);
            let frame =
                timeout_at(until, body.frame()).await.map_err(|_| ApiError::body_timeout())?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|_| ApiError::invalid("the body broke off"))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > BODY_BYTES_MAX {
                drop((bytes, permit));
                drain(body).await;
                return Err(ApiError::too_large(BODY_BYTES_MAX));
            }
            if permit.is_none() && bytes.len() + data.len() > SMALL_BYTES_MAX {
                let asked = Instant::now();
                permit = Some(self.large_permit().await?);
                // That wait was ours, not the client's.
                deadline += asked.elapsed();
            }
            bytes.extend_from_slice(&data);
            deadline = (deadline + time_for(data.len())).min(Instant::now() + LAG_MAX);
        }
        Ok(Request { bytes: bytes.into(), _permit: permit })
    }

    async fn large_permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let permit = timeout(PERMIT_WAIT_MAX, Arc::clone(&self.large).acquire_owned()).await;
        let busy = "too many large requests are being read; try again";
        let permit =
            permit.map_err(|_| ApiError::unavailable("busy", busy, Some(PERMIT_RETRY_S)))?;
        Ok(permit.expect("the semaphore is never closed"))
    }
}

/// What these bytes take at the lowest rate.
fn time_for(bytes: usize) -> Duration {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    Duration::from_secs(1) * bytes / RATE_MIN
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
    let _ = timeout(DRAIN_TIME_MAX, dropped).await;
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
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::time::Duration;

    use axum::body::{Body, Bytes};
    use axum::http::HeaderMap;
    use axum::http::header::CONTENT_LENGTH;
    use axum::response::IntoResponse as _;
    use futures_util::stream::{self, StreamExt as _};
    use tokio::time::{Instant, sleep, timeout};

    use super::{BodyReader, LAG_MAX, LARGE_BODIES_MAX, SMALL_BYTES_MAX};
    use super::{VALUES_MAX, count_values, parse_object};

    const STALL: Duration = Duration::from_secs(120);
    const MB: usize = 1024 * 1024;

    /// That many pieces of that many bytes, one after each pause.
    fn body(pieces: usize, bytes: usize, pause: Duration) -> Body {
        let data = Bytes::from(vec![b' '; bytes]);
        Body::from_stream(stream::iter(0..pieces).then(move |_| {
            let data = data.clone();
            async move {
                sleep(pause).await;
                Ok::<_, Infallible>(data)
            }
        }))
    }

    async fn read(reader: &BodyReader, announced: usize, body: Body) -> Result<usize, u16> {
        let headers = HeaderMap::from_iter([(CONTENT_LENGTH, announced.into())]);
        let read = reader.read(&headers, body).await;
        read.map(|read| read.bytes.len()).map_err(|error| error.status().as_u16())
    }

    #[tokio::test(start_paused = true)]
    async fn slow_uploads_of_any_number_hold_up_nobody_by_what_they_announce() {
        let reader = Arc::new(BodyReader::new(STALL));
        for _ in 0..4 * LARGE_BODIES_MAX {
            let reader = Arc::clone(&reader);
            let slow = body(1000, 1000, Duration::from_secs(1));
            tokio::spawn(async move { read(&reader, 5 * MB, slow).await });
        }
        sleep(Duration::from_secs(5)).await;
        let large = read(&reader, MB, body(1, MB, Duration::ZERO));
        assert_eq!(timeout(Duration::from_secs(1), large).await.unwrap(), Ok(MB));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_crawls_is_refused_and_one_that_is_slow_but_steady_is_read() {
        let reader = BodyReader::new(STALL);
        let begun = Instant::now();
        let crawling = body(1000, 1000, Duration::from_secs(1));
        assert_eq!(read(&reader, MB, crawling).await, Err(408));
        assert!(begun.elapsed() < LAG_MAX + Duration::from_secs(2));
        let steady = body(100, MB / 10, Duration::from_secs(1));
        assert_eq!(read(&reader, 10 * MB, steady).await, Ok(100 * (MB / 10)));
        // A fast beginning earns no long silence.
        let begun = Instant::now();
        let fast = body(1, 10 * MB, Duration::ZERO).into_data_stream();
        let silent = Body::from_stream(fast.chain(stream::pending()));
        assert_eq!(read(&reader, 11 * MB, silent).await, Err(408));
        assert!(begun.elapsed() < LAG_MAX + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_permit_is_told_when_to_come_back() {
        let reader = BodyReader::new(STALL);
        let large = || body(1, SMALL_BYTES_MAX + 1, Duration::ZERO);
        let mut held = Vec::new();
        for _ in 0..LARGE_BODIES_MAX {
            held.push(reader.read(&HeaderMap::new(), large()).await.unwrap());
        }
        let none = HeaderMap::new();
        let refused = reader.read(&none, large());
        let refused = timeout(Duration::from_secs(15), refused).await.unwrap().unwrap_err();
        assert_eq!(refused.status().as_u16(), 503);
        assert!(refused.into_response().headers().contains_key("retry-after"));
        let small = body(1, SMALL_BYTES_MAX, Duration::ZERO);
        assert_eq!(read(&reader, 5 * MB, small).await, Ok(SMALL_BYTES_MAX));
        held.pop();
        assert!(reader.read(&HeaderMap::new(), large()).await.is_ok());
    }

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
