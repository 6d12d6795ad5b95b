//! `cargo demo`: builds the programs, fetches a small real model, asks it two questions, and kills
//! the worker in the middle of an answer. Ends with 0 only if everything it shows was so.
//!
//! `cargo demo -- --serve` stays up and prints a line for curl; `--model FILE` takes another
//! weight file; `--listen ADDRESS` another address.
#![expect(clippy::print_stdout, reason = "it is made to be read in a terminal")]

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use strata_tests::server::{Server, Setup, question};
use strata_tests::{build, model, process, programs};

const USAGE: &str = "\
Usage: cargo demo [-- OPTIONS]

  --serve            stay up, and print a line for curl
  --model FILE       another weight file (GGUF, architecture llama)
  --listen ADDRESS   where to listen with --serve [127.0.0.1:8080]
";

/// Tokens of the long answer after which the worker is killed.
const KILL_AFTER_TOKENS: usize = 40;

const LONG_QUESTION: &str = "Explain in detail how the water cycle works.";
const LONG_TOKENS: u32 = 200;

struct Options {
    is_serving: bool,
    model: Option<PathBuf>,
    listen: String,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("{why}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let result = if options.is_serving { serve(&options) } else { show(&options) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("\nThe demo failed: {why}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let listen = "127.0.0.1:8080".to_owned();
    let mut options = Options { is_serving: false, model: None, listen };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--serve" => options.is_serving = true,
            "--model" => options.model = Some(PathBuf::from(value()?)),
            "--listen" => options.listen = value()?,
            "--help" | "-h" => return Ok(None),
            // The alias ends in it, and a person may write another.
            "--" => {}
            _ => return Err(format!("`{argument}` is no option")),
        }
    }
    Ok(Some(options))
}

fn step(number: u32, what: &str) {
    println!("\n[{number}/6] {what}");
}

/// Builds the programs and finds the model.
fn prepare(options: &Options) -> Result<(PathBuf, PathBuf), String> {
    step(1, "Building the programs (release)");
    let folder = build::release_programs()?;
    step(2, "The model");
    let model = match &options.model {
        Some(path) => path.clone(),
        None => model::fetch()?,
    };
    println!("      {}", model.display());
    Ok((folder, model))
}

fn show(options: &Options) -> Result<(), String> {
    let (folder, model) = prepare(options)?;
    step(3, "Starting strata-supervisor, which starts strata-worker");
    let server = Setup::real(Some(&model)).programs(&folder).try_start()?;
    server.wait_ready();
    let pid = server.worker_pid();
    println!(
        "      supervisor {} on http://{}, worker {pid}, {}",
        server.pid(),
        server.address(),
        server.status()["worker"]["instruction_set"].as_str().unwrap_or("")
    );
    step(4, "A question");
    let short = ask(&server, "What is the capital of Japan?", 32, None)?;
    if options.model.is_none() && !short.contains("Tokyo") {
        return Err(format!("the answer does not name Tokyo: {short}"));
    }
    step(5, "A longer answer, undisturbed, and again with the worker killed in the middle");
    let undisturbed = ask(&server, LONG_QUESTION, LONG_TOKENS, None)?;
    let disturbed = ask(&server, LONG_QUESTION, LONG_TOKENS, Some(KILL_AFTER_TOKENS))?;
    compare(&undisturbed, &disturbed)?;
    step(6, "What the operator sees: strata-ctl status");
    let output = server.ctl(&["status"]);
    println!("{}", String::from_utf8_lossy(&output.stdout).trim_end());
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("strata-ctl ended with {}: {why}", output.status));
    }
    stop(server)?;
    println!("\nAll of it held. Next: `cargo demo -- --serve`, or README.md.");
    Ok(())
}

fn compare(undisturbed: &str, disturbed: &str) -> Result<(), String> {
    if undisturbed == disturbed {
        let count = undisturbed.chars().count();
        println!("      Both texts are equal, all {count} characters of them.");
        return Ok(());
    }
    let mut pairs = undisturbed.chars().zip(disturbed.chars());
    let at = pairs.position(|(a, b)| a != b).unwrap_or(undisturbed.chars().count());
    Err(format!("the disturbed text parts from the undisturbed one at character {at}"))
}

/// Streams an answer to stdout; kills the worker after `kill_after` tokens.
fn ask(
    server: &Server,
    text: &str,
    max_tokens: u32,
    kill_after: Option<usize>,
) -> Result<String, String> {
    println!("    > {text}");
    let mut stream = server.open_chat(&question(text, max_tokens))?;
    let before = server.worker_pid();
    let mut kill_left = kill_after;
    let mut shown = 0;
    let mut out = std::io::stdout();
    let mut killed_at = None;
    let mut pause = Duration::ZERO;
    write!(out, "      ").map_err(|error| error.to_string())?;
    while stream.step()? {
        let answer = &stream.answer;
        if answer.text().len() == shown {
            continue;
        }
        if let Some(at) = killed_at.take() {
            pause = Instant::elapsed(&at);
        }
        let piece = answer.text()[shown..].replace('\n', "\n      ");
        shown = answer.text().len();
        write!(out, "{piece}").and_then(|()| out.flush()).map_err(|error| error.to_string())?;
        if kill_left.is_some_and(|after| answer.events >= after) {
            kill_left = None;
            process::signal(before, Signal::SIGKILL);
            killed_at = Some(Instant::now());
            write!(out, "  <<worker {before} killed>>  ").map_err(|error| error.to_string())?;
        }
    }
    stream.answer.assert_whole(1);
    let timings = stream.answer.timings.clone().unwrap_or_default();
    let (count, rate) = (&timings["predicted_n"], timings["predicted_per_second"].as_f64());
    println!("\n      ({count} tokens, {:.0} tokens/s)", rate.unwrap_or(0.0));
    if kill_after.is_some() {
        let after = server.worker_pid();
        if after == before || kill_left.is_some() {
            return Err("the worker was not replaced in mid-answer".to_owned());
        }
        println!(
            "      Worker {before} died of SIGKILL; worker {after} went on in the same stream, \
             {:.2} s later.",
            pause.as_secs_f64()
        );
    }
    Ok(stream.answer.text().to_owned())
}

fn stop(mut server: Server) -> Result<(), String> {
    let worker = server.worker_pid();
    process::signal(server.pid(), Signal::SIGTERM);
    let status = server.wait_exit(Duration::from_secs(60));
    println!("\nStopped: the supervisor ended with {status}.");
    if !status.success() {
        return Err(format!("the supervisor ended with {status}:\n{}", server.log()));
    }
    if process::is_alive(worker) {
        return Err(format!("worker {worker} was left behind"));
    }
    Ok(())
}

/// Becomes the supervisor, which runs until it is stopped.
fn serve(options: &Options) -> Result<(), String> {
    let (folder, model) = prepare(options)?;
    let state = programs::target().join("strata-demo");
    println!("\nStarting the server; stop it with Ctrl-C. In another terminal:\n");
    println!("{}", curl_line(&options.listen));
    println!("\n  {} --state-dir {} status\n", ctl(&folder), state.display());
    // Taking its place, so that Ctrl-C reaches the supervisor alone and it can stop cleanly.
    let error = Command::new(folder.join("strata-supervisor"))
        .arg("--model")
        .arg(&model)
        .args(["--listen", &options.listen])
        .arg("--state-dir")
        .arg(&state)
        .exec();
    Err(format!("strata-supervisor: {error}"))
}

fn ctl(folder: &Path) -> String {
    folder.join("strata-ctl").display().to_string()
}

fn curl_line(address: &str) -> String {
    let body: Value = serde_json::json!({
        "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
        "temperature": 0,
        "stream": true,
    });
    format!(
        "  curl -N http://{address}/v1/chat/completions -H 'content-type: application/json' \
         -d '{body}'"
    )
}
