//! Who may ask: API keys, and on an open loopback address the Host and Origin of the request.
//!
//! Without a key, any web page in the user's browser could reach a loopback server: directly
//! (its `Origin` gives it away) or by a name it rebinds to 127.0.0.1 (its `Host` does).

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::App;
use super::error::ApiError;

/// Paths that need no key: probes and the list of models, as in llama-server.
const OPEN_PATHS: [&str; 6] =
    ["/health", "/v1/health", "/livez", "/readyz", "/models", "/v1/models"];

/// Middleware around the network routes.
pub(super) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let verdict = if app.api_keys.is_empty() {
        check_places(request.headers(), app.listen)
    } else if OPEN_PATHS.contains(&request.uri().path()) {
        Ok(())
    } else {
        check_key(request.headers(), &app.api_keys)
    };
    match verdict {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn check_key(headers: &HeaderMap, keys: &[String]) -> Result<(), ApiError> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    let plain = headers.get("x-api-key").map(|value| value.as_bytes());
    let mut is_known = false;
    for shown in [bearer, plain].into_iter().flatten() {
        for key in keys {
            // No early end: the time must not tell which key was nearly right.
            is_known |= is_same(shown, key.as_bytes());
        }
    }
    if is_known { Ok(()) } else { Err(ApiError::unauthorized()) }
}

/// Compares in a time that depends on the lengths alone.
fn is_same(shown: &[u8], key: &[u8]) -> bool {
    let difference =
        shown.iter().zip(key).fold(0, |difference, (a, b)| black_box(difference | (a ^ b)));
    black_box(difference) == 0 && shown.len() == key.len()
}

fn check_places(headers: &HeaderMap, listen: SocketAddr) -> Result<(), ApiError> {
    // HTTP/1.0 knows no Host; no browser speaks it.
    if let Some(host) = headers.get(header::HOST)
        && !host.to_str().is_ok_and(|host| is_local(host, listen))
    {
        return Err(ApiError::forbidden(
            "the Host header names another machine; set an API key to serve under that name",
        ));
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let host =
            origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
        if !host.is_some_and(|host| is_local(host, listen)) {
            return Err(ApiError::forbidden(
                "requests from web pages of other origins are refused while no API key is set",
            ));
        }
    }
    Ok(())
}

/// Whether a Host (with or without port) is this machine's loopback or the listen address.
fn is_local(host: &str, listen: SocketAddr) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) if port.is_empty() || is_port(port) => name,
            _ => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            Some(_) => return false,
            None => host,
        },
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback() || ip == listen.ip())
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::{is_local, is_same};

    #[test]
    fn loopback_names_pass_and_others_do_not() {
        let listen = "127.0.0.1:8080".parse().unwrap();
        let good =
            ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1:8080", "127.0.0.2", "[::1]:80"];
        for host in good {
            assert!(is_local(host, listen), "{host}");
        }
        let bad = [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "localhost:80@evil.example",
            "[::1",
            "[::1].evil.example",
            "10.0.0.1",
            "null",
        ];
        for host in bad {
            assert!(!is_local(host, listen), "{host}");
        }
    }

    #[test]
    fn keys_match_only_whole() {
        assert!(is_same(b"secret-key", b"secret-key"));
        assert!(!is_same(b"secret-ke", b"secret-key"));
        assert!(!is_same(b"secret-kez", b"secret-key"));
        assert!(!is_same(b"", b"secret-key"));
    }
}
