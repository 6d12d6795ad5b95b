//! `strata-ctl status`.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::CtlError;
use super::client::Client;
use crate::status::{ServiceState, Status};

/// Pause between two looks.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Clears a terminal and goes to its top left corner (ECMA-48: ED 2, CUP).
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Shows the status once, or until interrupted. While watching, a supervisor that is away is
/// shown as such: it may come back.
pub(super) async fn run(client: &Client, json: bool, watch: bool) -> Result<(), CtlError> {
    if !watch {
        return show(&fetch(client, json).await?);
    }
    let is_terminal = io::stdout().is_terminal() && !json;
    loop {
        let page = match fetch(client, json).await {
            Ok(page) => page,
            Err(error @ CtlError::Unreachable { .. }) if !json => format!("{error}\n"),
            Err(error) => return Err(error),
        };
        show(&if is_terminal { format!("{CLEAR}{page}") } else { page })?;
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

async fn fetch(client: &Client, json: bool) -> Result<String, CtlError> {
    let status = client.get("/status").await?;
    if json {
        return Ok(format!("{status}\n"));
    }
    let status: Status = serde_json::from_value(status).map_err(|error| {
        CtlError::Failed(format!("the supervisor is of another version: {error}; try --json"))
    })?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(page(&status, now))
}

fn show(page: &str) -> Result<(), CtlError> {
    let mut out = io::stdout().lock();
    out.write_all(page.as_bytes())?;
    Ok(out.flush()?)
}

/// The status for people.
fn page(status: &Status, now: u64) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: String| {
        writeln!(out, "{name:<13}{text}").expect("writing to a String cannot fail");
    };
    let cause = status.cause.as_ref().map_or(String::new(), |cause| format!(": {cause}"));
    let since = seconds(now.saturating_sub(status.since));
    line("state", format!("{} for {since}{cause}", state_name(status.state)));
    if let Some(at) = status.retry_at {
        line("next start", format!("in {}", seconds(at.saturating_sub(now))));
    }
    line("model", model(status));
    line("worker", worker(status));
    if let Some(loading) = &status.worker.loading {
        let percent = (loading.done_bytes * 100).checked_div(loading.total_bytes).unwrap_or(0);
        let (done, total) = (bytes(loading.done_bytes), bytes(loading.total_bytes));
        line("loading", format!("{percent} % ({done} of {total})"));
    }
    let requests = &status.requests;
    line(
        "requests",
        format!(
            "{} active, {} queued; of {}: {} finished, {} failed, {} cancelled; {} refused",
            requests.active,
            requests.queued,
            requests.total,
            requests.finished,
            requests.failed,
            requests.cancelled,
            requests.rejected
        ),
    );
    let tokens = &status.tokens;
    line(
        "tokens",
        format!(
            "{} prompt, {} generated, {} replayed",
            tokens.prompt_total, tokens.generated_total, tokens.replayed_total
        ),
    );
    let reasons: Vec<String> =
        status.recycles.by_reason.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
    let reasons =
        if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
    line("recycles", format!("{}{reasons}", status.recycles.total));
    if let Some(failure) = &status.last_failure {
        let ago = seconds(now.saturating_sub(failure.at));
        line(
            "last failure",
            format!(
                "{} of incarnation {}, {ago} ago: {}",
                failure.reason, failure.incarnation, failure.detail
            ),
        );
    }
    let age = Duration::try_from_secs_f64(status.uptime_s).unwrap_or_default().as_secs();
    line("supervisor", format!("version {}, up {}", status.version, seconds(age)));
    out
}

fn state_name(state: ServiceState) -> &'static str {
    match state {
        ServiceState::Loading => "loading",
        ServiceState::Serving => "serving",
        ServiceState::Recycling => "recycling",
        ServiceState::BackingOff => "backing off",
        ServiceState::Degraded => "degraded",
        ServiceState::Held => "held",
        ServiceState::Draining => "draining",
    }
}

fn model(status: &Status) -> String {
    let model = &status.model;
    let mut out = model.name.clone();
    if !model.arch.is_empty() {
        write!(out, " ({})", model.arch).expect("cannot fail");
    }
    if model.n_ctx > 0 {
        write!(out, ", context {}", model.n_ctx).expect("cannot fail");
    }
    if model.size_bytes > 0 {
        let millions = model.n_params / 1_000_000;
        write!(out, ", {millions} M parameters in {}", bytes(model.size_bytes))
            .expect("cannot fail");
    }
    out
}

fn worker(status: &Status) -> String {
    let worker = &status.worker;
    let Some(pid) = worker.pid else {
        return format!("{}, last incarnation {}", worker.state, worker.incarnation);
    };
    let age = Duration::try_from_secs_f64(worker.uptime_s).unwrap_or_default().as_secs();
    let mut out = format!(
        "{}, pid {pid}, incarnation {}, up {}",
        worker.state,
        worker.incarnation,
        seconds(age)
    );
    if worker.threads > 0 {
        write!(out, ", {} threads, {}", worker.threads, worker.instruction_set)
            .expect("cannot fail");
    }
    out
}

fn seconds(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

fn bytes(bytes: u64) -> String {
    const MEGABYTE: u64 = 1_000_000;
    let tenths = bytes / (MEGABYTE / 10);
    if tenths < 100_000 {
        format!("{}.{} MB", tenths / 10, tenths % 10)
    } else {
        format!("{}.{} GB", tenths / 10_000, tenths / 1000 % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, seconds};

    #[test]
    fn quantities_for_people() {
        assert_eq!(seconds(59), "59 s");
        assert_eq!(seconds(61), "1 min 1 s");
        assert_eq!(seconds(3 * 3600 + 120), "3 h 2 min");
        assert_eq!(seconds(90_000), "1 d 1 h");
        assert_eq!(bytes(98_870_000), "98.8 MB");
        assert_eq!(bytes(54_800_000_000), "54.8 GB");
    }
}
