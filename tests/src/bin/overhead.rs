//! What the split into two processes costs: decode through HTTP, the token log and the socket,
//! against `strata-worker bench` on the same file with the same threads, in one run.
//!
//! Usage: `cargo run --release -p strata-tests --bin overhead -- [--threads N] [--tokens N]`
#![expect(clippy::print_stdout, reason = "it is made to be read in a terminal")]

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use serde_json::{Value, json};
use strata_tests::server::{Server, Setup};
use strata_tests::sse::AnswerStream;
use strata_tests::{build, model};

/// Pairs of runs; the medians are compared, so that a busy moment counts little.
const PAIRS: usize = 5;

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn option(name: &str, default: &str) -> String {
    let arguments: Vec<String> = std::env::args().collect();
    let place = arguments.iter().position(|argument| argument == name);
    place.and_then(|at| arguments.get(at + 1)).map_or(default, String::as_str).to_owned()
}

fn measure() -> Result<(), String> {
    let threads = option("--threads", "1");
    let tokens: u32 = option("--tokens", "128").parse().map_err(|_| "--tokens is no number")?;
    let folder = build::release_programs()?;
    let model = model::fetch()?;
    let setup = Setup::real(Some(&model)).programs(&folder).flag("--threads", &threads);
    let server = setup.try_start()?;
    server.wait_ready();
    let (mut alone, mut through) = (Vec::new(), Vec::new());
    for pair in 1..=PAIRS {
        // The idle worker of the server parks its threads, so both may stay loaded.
        alone.push(bench(&folder, &model, &threads, tokens)?);
        through.push(stream(&server, tokens)?);
        println!(
            "pair {pair}: bench {:.2} tokens/s, HTTP {:.2} tokens/s",
            alone[pair - 1],
            through[pair - 1]
        );
    }
    let (alone, through) = (median(&mut alone), median(&mut through));
    println!("\ndecode of {tokens} tokens, {threads} threads, medians of {PAIRS}:");
    println!("  strata-worker bench  {alone:>8.2} tokens/s");
    println!("  HTTP and socket      {through:>8.2} tokens/s");
    println!("  difference           {:>8.2} %", (alone / through - 1.0) * 100.0);
    println!("  overhead             {:>8.1} us a token", 1e6 / through - 1e6 / alone);
    Ok(())
}

fn bench(folder: &Path, model: &Path, threads: &str, tokens: u32) -> Result<f64, String> {
    let output = Command::new(folder.join("strata-worker"))
        .args(["bench", "--json", "-p", "0", "-r", "1", "-t", threads, "-n", &tokens.to_string()])
        .arg("-m")
        .arg(model)
        .output()
        .map_err(|error| format!("strata-worker: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let result: Value = serde_json::from_str(&said).map_err(|error| {
        let why = String::from_utf8_lossy(&output.stderr);
        format!("strata-worker bench: {error}: {said}{why}")
    })?;
    result["decode_tokens_per_s"].as_f64().ok_or(format!("no decode_tokens_per_s in {result}"))
}

/// Decodes from a prompt of one token, as the benchmark does from an empty context.
fn stream(server: &Server, tokens: u32) -> Result<f64, String> {
    let body = json!({
        "prompt": [1], "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": true,
    });
    let mut stream = AnswerStream::open(server.client(), "/v1/completions", &body)?;
    let mut first = None;
    let mut last = Instant::now();
    while stream.step()? {
        if !stream.answer.is_done && stream.answer.end().is_empty() {
            last = Instant::now();
            first.get_or_insert(last);
        }
    }
    stream.answer.assert_whole(1);
    let first = first.ok_or("no token came")?;
    // Pieces of a character come with its last token, so events are fewer than tokens.
    let timings = stream.answer.timings.unwrap_or_default();
    if timings["predicted_n"] != tokens {
        return Err(format!("not {tokens} tokens: {timings}"));
    }
    Ok(f64::from(tokens - 1) / (last - first).as_secs_f64())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
