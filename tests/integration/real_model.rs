//! The real programs with the real model. Slow in development builds: `cargo verify` points
//! `STRATA_PROGRAMS` at the release ones.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use strata_tests::model;
use strata_tests::programs;
use strata_tests::random::Random;
use strata_tests::server::{Server, Setup, question};
use strata_tests::storm::{self, Storm};

const CHAT: &str = "/v1/chat/completions";

fn serve(flags: &[(&str, &str)]) -> Server {
    let model = model::fetch().unwrap_or_else(|why| panic!("{why}"));
    let setup = Setup::real(Some(&model));
    flags.iter().fold(setup, |setup, (name, value)| setup.flag(name, value)).serve()
}

fn content(server: &Server, body: &Value) -> String {
    let response = server.client().post(CHAT, body);
    assert_eq!(response.status(), 200, "{}", response.text());
    response.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn it_knows_the_capital_of_japan() {
    let server = serve(&[]);
    let answer = server.chat(&question("What is the capital of Japan?", 32));
    answer.assert_whole(1);
    assert!(answer.text().contains("Tokyo"), "{}", answer.text());
    assert_eq!(answer.end(), "stop");
    assert_eq!(content(&server, &question("What is the capital of Japan?", 32)), answer.text());
    server.finish();
}

#[test]
fn a_worker_killed_in_decode_and_in_prefill_changes_nothing() {
    let mut server = serve(&[("--prefill-chunk", "64")]);
    server.allow("worker lost");
    for (temperature, seed) in [(0.0, 0), (0.8, 7)] {
        let mut body = question("Explain how a bicycle stays upright.", 100);
        body["temperature"] = json!(temperature);
        body["seed"] = json!(seed);
        let undisturbed = content(&server, &body);
        let mut stream = server.open_chat(&body).unwrap();
        while stream.answer.events < 30 {
            assert!(stream.step().unwrap());
        }
        server.signal_worker(Signal::SIGKILL);
        let answer = stream.finish().unwrap();
        answer.assert_whole(1);
        assert_eq!(answer.text(), undisturbed, "temperature {temperature}");
    }
    let long = question(&"The sea was calm and the sky was clear. ".repeat(150), 12);
    let undisturbed = content(&server, &long);
    let stream = server.open_chat(&long).unwrap();
    server.signal_worker(Signal::SIGKILL);
    assert_eq!(stream.finish().unwrap().text(), undisturbed);
    server.finish();
}

#[test]
fn every_stream_reads_as_if_nothing_had_happened() {
    let random = Random::announced("streams over death, real model");
    let mut server = serve(&[("--forgive-after-s", "0.1"), ("--failures-max", "1000")]);
    server.allow("worker lost");
    let storm = Storm {
        streams: Storm::streams_or(25),
        pause_max: Duration::from_millis(1500),
        tokens: 48,
    };
    let outcome = storm::run(&server, &storm, random);
    eprintln!("{} streams, {} workers killed", storm.streams, outcome.kills);
    assert!(outcome.kills > 3, "the storm was calm: {outcome:?}");
    server.finish();
}

#[test]
fn special_tokens_typed_by_a_user_stay_text() {
    let server = serve(&[]);
    let count = |text: &str| {
        let response = server.client().post(CHAT, &question(text, 1)).json();
        response["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let plain = count("a");
    assert!(count("a<|im_end|>") > plain + 3, "typed control tokens are several text tokens");
    server.finish();
}

#[test]
fn logprobs_are_probabilities() {
    let server = serve(&[]);
    let mut body = question("Say hello.", 8);
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(5);
    let answer = server.chat(&body);
    answer.assert_whole(1);
    for entry in &answer.choices[&0].logprobs {
        let top = entry["top_logprobs"].as_array().unwrap();
        let of = |entry: &Value| entry["logprob"].as_f64().unwrap();
        let total: f64 = top.iter().map(|rival| of(rival).exp()).sum();
        assert!(total <= 1.0 + 1e-4, "{entry}");
        assert!(top.is_sorted_by(|a, b| of(a) >= of(b)), "{entry}");
        assert_eq!(of(entry), of(&top[0]), "greedy takes the best: {entry}");
    }
    server.finish();
}

#[test]
fn long_and_odd_prompts_are_answered_in_bounded_time() {
    let server = serve(&[]);
    for (name, text) in [
        ("1,000 emoji", "😀".repeat(1000)),
        ("combining marks", format!("e{}", "\u{301}".repeat(1000))),
        ("control characters", (0_u8..32).map(char::from).collect()),
        ("50 KB of one character", "a".repeat(50_000)),
    ] {
        let response = server.client().post(CHAT, &question(&text, 4));
        // What does not fit this model's context is refused; all else is answered.
        let is_too_long = response.status() == 400
            && response.json()["error"]["type"] == "exceed_context_size_error";
        assert!(response.status() == 200 || is_too_long, "{name}: {}", response.text());
    }
    assert_eq!(server.recycles(), 0);
    server.finish();
}

#[test]
fn slots_share_the_worker_and_do_not_change_texts() {
    let server = serve(&[]);
    let bodies: Vec<Value> = ["rain", "snow", "wind", "fog"]
        .iter()
        .map(|word| question(&format!("Write two sentences about {word}."), 40))
        .collect();
    let alone: Vec<String> = bodies.iter().map(|body| content(&server, body)).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            bodies.iter().map(|body| scope.spawn(|| content(&server, body))).collect();
        asked.into_iter().map(|answer| answer.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
    server.finish();
}

/// The tools measure the real model: their JSON has the promised keys, and the perplexity of this
/// project's licence is llama.cpp's (`llama-perplexity -c 512`: 15.8532) within half a percent.
#[test]
fn the_tools_measure_it() {
    let model = model::fetch().unwrap_or_else(|why| panic!("{why}"));
    let measure = |arguments: &[&str]| -> Value {
        let output = Command::new(programs::find("strata-worker").unwrap())
            .args(arguments)
            .arg("--json")
            .arg("-m")
            .arg(&model)
            .output()
            .unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {why}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let bench = measure(&["bench", "-p", "64", "-n", "8", "-t", "1", "-r", "1"]);
    for key in ["prefill_tokens_per_s", "decode_tokens_per_s"] {
        assert!(bench[key].as_f64().is_some_and(|rate| rate > 0.0), "{bench}");
    }
    let licence = concat!(env!("CARGO_MANIFEST_DIR"), "/../LICENSE");
    let measured = measure(&["perplexity", "-f", licence, "-c", "512"]);
    let perplexity = measured["perplexity"].as_f64().unwrap();
    assert!((perplexity / 15.8532 - 1.0).abs() < 0.005, "{measured}");
}
