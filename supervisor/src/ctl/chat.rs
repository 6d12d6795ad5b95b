//! `strata-ctl chat`: a conversation in a terminal, or one question.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use clap::Args;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

use super::CtlError;
use super::client::Client;

/// Longest frame that is put together from pieces, in bytes.
const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What `chat` takes.
#[derive(Debug, Args)]
pub(super) struct ChatArgs {
    /// Ask this one question and leave
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// What the model is told first
    #[arg(short, long, value_name = "TEXT")]
    system: Option<String>,
    /// Longest answer in tokens
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
    /// 0 always takes the likeliest token
    #[arg(long, value_name = "T", value_parser = finite)]
    temperature: Option<f64>,
    /// Makes an answer repeatable
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn finite(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if f64::is_finite(value) => Ok(value),
        _ => Err("must be a finite number".to_owned()),
    }
}

/// Talks until the input ends, or answers the one question.
pub(super) async fn run(client: &Client, args: &ChatArgs) -> Result<(), CtlError> {
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(json!({ "role": "system", "content": system }));
    }
    if let Some(prompt) = &args.prompt {
        messages.push(json!({ "role": "user", "content": prompt }));
        return answer(client, args, &messages).await.map(drop);
    }
    let is_terminal = io::stdin().is_terminal();
    loop {
        if is_terminal {
            write!(io::stderr(), "> ")?;
        }
        let mut line = Vec::new();
        if io::stdin().lock().read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let line = String::from_utf8_lossy(&line);
        let question = line.trim();
        if question.is_empty() {
            continue;
        }
        messages.push(json!({ "role": "user", "content": question }));
        match answer(client, args, &messages).await {
            Ok(text) => messages.push(json!({ "role": "assistant", "content": text })),
            // A conversation goes on after one answer failed; a script must hear of it.
            Err(error @ (CtlError::Failed(_) | CtlError::Refused(_))) if is_terminal => {
                messages.pop();
                writeln!(io::stderr(), "strata-ctl: {error}")?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Prints an answer as it comes and gives it back.
async fn answer(client: &Client, args: &ChatArgs, messages: &[Value]) -> Result<String, CtlError> {
    let mut body = Map::from_iter([
        ("messages".to_owned(), json!(messages)),
        ("stream".to_owned(), json!(true)),
    ]);
    body.insert("max_tokens".to_owned(), json!(args.max_tokens));
    body.insert("temperature".to_owned(), json!(args.temperature));
    body.insert("seed".to_owned(), json!(args.seed));
    let mut events = Events {
        body: client.stream("/v1/chat/completions", &Value::Object(body)).await?,
        bytes: Vec::new(),
    };
    let (mut text, mut finish) = (String::new(), None);
    while let Some(data) = events.next().await? {
        if data == "[DONE]" {
            break;
        }
        let event: Value = serde_json::from_str(&data)
            .map_err(|error| CtlError::Failed(format!("the stream makes no sense: {error}")))?;
        if let Some(error) = event.get("error") {
            writeln!(io::stdout())?;
            let message = error["message"].as_str().unwrap_or("the request failed");
            return Err(CtlError::Failed(message.to_owned()));
        }
        if let Some(piece) = event["choices"][0]["delta"]["content"].as_str() {
            let mut out = io::stdout().lock();
            out.write_all(piece.as_bytes())?;
            out.flush()?;
            text.push_str(piece);
        }
        if event["choices"][0]["finish_reason"].is_string() {
            finish = Some(event);
        }
    }
    writeln!(io::stdout())?;
    let Some(finish) = finish else {
        return Err(CtlError::Failed("the stream broke off".to_owned()));
    };
    note(&finish)?;
    Ok(text)
}

/// How fast it was, for people only.
fn note(finish: &Value) -> io::Result<()> {
    if io::stderr().is_terminal() {
        let timings = &finish["timings"];
        let count = timings["predicted_n"].as_u64().unwrap_or(0);
        let rate = timings["predicted_per_second"].as_f64().unwrap_or(0.0);
        let why = finish["choices"][0]["finish_reason"].as_str().unwrap_or("");
        writeln!(io::stderr(), "[{count} tokens, {rate:.1} tokens/s, {why}]")?;
    }
    Ok(())
}

/// The `data` of server-sent events; comments are skipped.
///
/// Source: WHATWG HTML, section 9.2, "Server-sent events", as far as our own server uses it.
struct Events {
    body: Incoming,
    bytes: Vec<u8>,
}

impl Events {
    async fn next(&mut self) -> Result<Option<String>, CtlError> {
        loop {
            while let Some(end) = self.bytes.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.bytes.drain(..end + 2).collect();
                if let Some(data) = block[..end].strip_prefix(b"data: ") {
                    return Ok(Some(String::from_utf8_lossy(data).into_owned()));
                }
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let frame = frame
                .map_err(|error| CtlError::Failed(format!("the stream broke off: {error}")))?;
            if let Ok(data) = frame.into_data() {
                self.bytes.extend_from_slice(&data);
            }
            if self.bytes.len() > FRAME_BYTES_MAX {
                return Err(CtlError::Failed("the stream has a frame without end".to_owned()));
            }
        }
    }
}
