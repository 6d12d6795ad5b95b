//! `GET /metrics`: Prometheus text, written from the status object. Counters never go back over a
//! recycle, since the supervisor counts.

use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};

use super::App;
use crate::status::{ServiceState, Status};

const PROCESS_START: HeaderName = HeaderName::from_static("process-start-time-unix");

/// Every state, for one line each.
const STATES: [(ServiceState, &str); 7] = [
    (ServiceState::Loading, "loading"),
    (ServiceState::Serving, "serving"),
    (ServiceState::Recycling, "recycling"),
    (ServiceState::BackingOff, "backing_off"),
    (ServiceState::Degraded, "degraded"),
    (ServiceState::Held, "held"),
    (ServiceState::Draining, "draining"),
];

/// The route.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let started = app.started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4")),
        (PROCESS_START, HeaderValue::from(started)),
    ];
    (headers, write(&app.sessions.status())).into_response()
}

/// The text of all metrics.
fn write(status: &Status) -> String {
    let mut out = Page::default();
    llama_names(status, &mut out);
    let requests = &status.requests;
    for (name, help, value) in [
        ("requests_total", "Requests accepted", requests.total),
        ("requests_finished_total", "Requests ended by the model or a limit", requests.finished),
        ("requests_failed_total", "Requests with a choice that failed", requests.failed),
        ("requests_cancelled_total", "Requests given up by their client", requests.cancelled),
        ("requests_rejected_total", "Requests refused before admission", requests.rejected),
        ("prompt_tokens_total", "Prompt tokens of accepted choices", status.tokens.prompt_total),
        ("generated_tokens_total", "Tokens generated", status.tokens.generated_total),
        ("replayed_tokens_total", "Tokens read again by replays", status.tokens.replayed_total),
        ("worker_recycles_total", "Workers replaced", status.recycles.total),
    ] {
        out.single(&format!("strata_{name}"), "counter", help, value);
    }
    out.head("strata_worker_recycles_by_reason_total", "counter", "Workers replaced, by reason");
    for (reason, count) in &status.recycles.by_reason {
        out.line("strata_worker_recycles_by_reason_total", &[("reason", reason)], count);
    }
    out.head("strata_state", "gauge", "1 for the state the service is in");
    for (state, name) in STATES {
        out.line("strata_state", &[("state", name)], u8::from(status.state == state));
    }
    let is_ready = u8::from(status.state == ServiceState::Serving);
    out.single("strata_ready", "gauge", "Whether a worker that has computed can serve", is_ready);
    for (name, help, value) in [
        ("requests_active", "Requests being computed", requests.active),
        ("requests_queued", "Requests that wait", requests.queued),
        ("worker_incarnation", "Number of the worker's life", status.worker.incarnation),
        ("context_length", "Context length per sequence in tokens", status.model.n_ctx.into()),
    ] {
        out.single(&format!("strata_{name}"), "gauge", help, value);
    }
    out.single("strata_uptime_seconds", "gauge", "Age of the supervisor", status.uptime_s);
    let help = "Age of the worker's process";
    out.single("strata_worker_uptime_seconds", "gauge", help, status.worker.uptime_s);
    out.head("strata_build_info", "gauge", "Version and model, as labels");
    let labels = [
        ("version", status.version.as_str()),
        ("model", status.model.name.as_str()),
        ("arch", status.model.arch.as_str()),
    ];
    out.line("strata_build_info", &labels, 1);
    out.text
}

/// The names of llama-server that can be filled truthfully.
fn llama_names(status: &Status, out: &mut Page) {
    for (name, kind, help, value) in [
        ("prompt_tokens_total", "counter", "Prompt tokens", status.tokens.prompt_total),
        ("tokens_predicted_total", "counter", "Tokens generated", status.tokens.generated_total),
        ("requests_processing", "gauge", "Requests being computed", status.requests.active),
        ("requests_deferred", "gauge", "Requests that wait", status.requests.queued),
    ] {
        out.single(&format!("llamacpp:{name}"), kind, help, value);
    }
}

/// The exposition format.
///
/// Source: Prometheus documentation, "Exposition formats", text-based format.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        write!(self.text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n").expect("cannot fail");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (place, (label, content)) in labels.iter().enumerate() {
            let open = if place == 0 { '{' } else { ',' };
            let content = content.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(self.text, "{open}{label}=\"{content}\"").expect("cannot fail");
        }
        let close = if labels.is_empty() { "" } else { "}" };
        writeln!(self.text, "{close} {value}").expect("cannot fail");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.line(name, &[], value);
    }
}
