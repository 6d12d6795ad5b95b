//! Clients that leave, and clients that are too many.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::api::connection::{Bounds, serve};

/// Longest that a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// How soon a client that left must be noticed.
const NOTICED: Duration = Duration::from_secs(2);

/// Says that it was dropped.
struct Told(mpsc::UnboundedSender<&'static str>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send("dropped");
    }
}

/// A service whose requests wait until they are released.
struct Service {
    address: SocketAddr,
    events: mpsc::UnboundedReceiver<&'static str>,
    release: watch::Sender<bool>,
}

impl Service {
    async fn new(connections_max: usize) -> Self {
        let (told, events) = mpsc::unbounded_channel();
        let (release, released) = watch::channel(false);
        let begin = move || {
            told.send("begun").unwrap();
            (Told(told.clone()), released.clone())
        };
        let streamed = begin.clone();
        let router = Router::new()
            .route("/quick", get(|| async { "quick" }))
            .route(
                "/whole",
                get(move || async move {
                    let (_told, mut released) = begin();
                    released.wait_for(|is| *is).await.unwrap();
                    "whole"
                }),
            )
            .route(
                "/stream",
                get(move || async move {
                    let waiting = futures_util::stream::once(async move {
                        let (_told, mut released) = streamed();
                        released.wait_for(|is| *is).await.unwrap();
                        Ok(Bytes::from_static(b"end"))
                    });
                    let opening = futures_util::stream::iter([Ok::<_, Infallible>("x".into())]);
                    Body::from_stream(opening.chain(waiting))
                }),
            )
            .route("/body", post(|body: Body| async { body.collect().await.unwrap().to_bytes() }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounds = Bounds { connections_max, stall: PATIENCE };
        tokio::spawn(serve(listener, router, bounds, std::future::pending()));
        Self { address, events, release }
    }

    async fn connect(&self, first: &str) -> TcpStream {
        let mut client = TcpStream::connect(self.address).await.unwrap();
        client.write_all(first.as_bytes()).await.unwrap();
        client
    }

    /// A request, begun in the service.
    async fn begin(&mut self, path: &str) -> TcpStream {
        let client = self.connect(&head("GET", path)).await;
        self.expect("begun").await;
        client
    }

    async fn expect(&mut self, event: &str) {
        let came = timeout(PATIENCE, self.events.recv()).await;
        assert_eq!(came.unwrap(), Some(event));
    }
}

fn head(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n")
        + if method == "POST" { "content-length: 100\r\n\r\n" } else { "\r\n" }
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_whatever_it_sent_behind_its_request() {
    let mut service = Service::new(64).await;
    let pipelined = head("GET", "/whole");
    let flood = "x".repeat(1024 * 1024);
    for path in ["/whole", "/stream"] {
        for behind in ["", "\r\n", "x", &pipelined, &flood] {
            for is_half in [false, true] {
                let mut client = service.begin(path).await;
                // Of a flood only a part is taken.
                let write = client.write_all(behind.as_bytes());
                let _ = timeout(Duration::from_millis(200), write).await;
                if is_half {
                    let _ = client.shutdown().await;
                } else {
                    drop(client);
                }
                let noticed = timeout(NOTICED + Duration::from_secs(1), service.events.recv());
                let what = format!("{path}, {} bytes behind, half: {is_half}", behind.len());
                assert_eq!(noticed.await.expect(&what), Some("dropped"), "{what}");
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_stays_keeps_its_request_whatever_it_sent_behind() {
    let mut service = Service::new(64).await;
    let mut client = service.begin("/whole").await;
    client.write_all(b"\r\n").await.unwrap();
    let waited = timeout(NOTICED, service.events.recv()).await;
    assert!(waited.is_err(), "{waited:?}");
    service.release.send_replace(true);
    let mut answer = vec![0; 512];
    let count = timeout(PATIENCE, client.read(&mut answer)).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&answer[..count]).ends_with("whole"));
}

async fn assert_answers_soon(service: &Service, who: &str) {
    let ask = async {
        let mut client = service.connect(&head("GET", "/quick")).await;
        let mut answer = vec![0; 512];
        let count = client.read(&mut answer).await.unwrap();
        assert!(String::from_utf8_lossy(&answer[..count]).ends_with("quick"), "{who}");
    };
    assert!(timeout(Duration::from_secs(2), ask).await.is_ok(), "{who}");
}

#[tokio::test]
async fn a_full_house_makes_room_but_never_cuts_who_waits_for_an_answer() {
    const ROOM: usize = 16;
    let mut service = Service::new(ROOM).await;
    let mut waiting = service.begin("/whole").await;
    let whole = head("POST", "/body");
    for (who, first) in [
        ("silent", ""),
        ("half a head", "GET / HTTP/1.1\r\nhost: loc"),
        ("half a body", &format!("{whole}{}", "x".repeat(50))),
    ] {
        let mut crowd = Vec::new();
        for _ in 0..3 * ROOM {
            crowd.push(service.connect(first).await);
        }
        assert_answers_soon(&service, who).await;
    }
    service.release.send_replace(true);
    let mut answer = vec![0; 512];
    let count = timeout(PATIENCE, waiting.read(&mut answer)).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&answer[..count]).ends_with("whole"));
}
