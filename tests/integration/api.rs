//! The API's promises, over a real socket, with the fake worker.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use strata_tests::http::{Body, Response};
use strata_tests::process;
use strata_tests::server::{Server, Setup, question};
use strata_tests::sse::{Answer, AnswerStream};
use strata_tests::wait::wait_until;

const CHAT: &str = "/v1/chat/completions";
const CLASSIC: &str = "/v1/completions";

fn server() -> Server {
    Setup::fake("end_every=0").serve()
}

/// A whole answer, read as a stream's would be.
fn whole(response: &Response) -> Answer {
    let mut answer = Answer::default();
    assert_eq!(response.status(), 200, "{}", response.text());
    answer.take(&response.json());
    answer
}

fn error(response: &Response) -> Value {
    let body = response.json();
    assert!(body["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{body}");
    body["error"].clone()
}

fn prompt_tokens(server: &Server, content: &str) -> u64 {
    let response = server.client().post(CHAT, &question(content, 1));
    assert_eq!(response.status(), 200, "{}", response.text());
    response.json()["usage"]["prompt_tokens"].as_u64().unwrap()
}

#[test]
fn a_stream_and_a_whole_answer_say_the_same() {
    let server = server();
    let mut body = question("Hello", 40);
    body["stream_options"] = json!({"include_usage": true});
    let mut stream = server.open_chat(&body).unwrap();
    assert_eq!(stream.head.field("content-type"), Some("text/event-stream"));
    while stream.step().unwrap() {}
    let streamed = stream.answer;
    streamed.assert_whole(1);
    assert_eq!(streamed.end(), "length");
    assert_eq!(streamed.text().len(), 40);
    let answer = whole(&server.client().post(CHAT, &question("Hello", 40)));
    assert_eq!(answer.text(), streamed.text());
    assert_eq!(answer.end(), "length");
    let usage = streamed.usage.expect("it was asked for");
    assert_eq!(usage["completion_tokens"], 40);
    assert_eq!(Some(usage), answer.usage);
    server.finish();
}

#[test]
fn classic_completions_stream_and_take_ids_and_lists() {
    let server = server();
    let body = json!({"prompt": "abc", "max_tokens": 9, "temperature": 0, "stream": true});
    let streamed = AnswerStream::open(server.client(), CLASSIC, &body).unwrap().finish().unwrap();
    streamed.assert_whole(1);
    let ids = json!({"prompt": [97, 98, 99], "max_tokens": 9, "temperature": 0});
    assert_eq!(whole(&server.client().post(CLASSIC, &ids)).text(), streamed.text());
    let list = json!({"prompt": ["abc", "abd"], "max_tokens": 9, "temperature": 0});
    let both = whole(&server.client().post(CLASSIC, &list));
    assert_eq!(both.choices.len(), 2);
    assert_eq!(both.text(), streamed.text());
    server.finish();
}

#[test]
fn every_optional_field_may_be_null() {
    let server = server();
    let names = [
        "model",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "n",
        "seed",
        "stop",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "presence_penalty",
        "frequency_penalty",
        "repeat_penalty",
        "tools",
        "tool_choice",
        "response_format",
        "user",
        "metadata",
        "chat_template_kwargs",
        "ignore_eos",
    ];
    let mut body = json!({"messages": [{"role": "user", "content": "a", "name": null}]});
    for name in names {
        body[name] = Value::Null;
    }
    // Without a limit the answer would go on to the end of the context.
    body["max_completion_tokens"] = json!(3);
    whole(&server.client().post(CHAT, &body));
    let mut classic = json!({"prompt": "a", "max_tokens": 3});
    for name in ["suffix", "echo", "best_of", "logprobs", "n", "stop", "stream", "seed"] {
        classic[name] = Value::Null;
    }
    whole(&server.client().post(CLASSIC, &classic));
    server.finish();
}

#[test]
fn a_wrong_field_is_named() {
    let server = server();
    for (name, value) in [
        ("temperature", json!("hot")),
        ("temperature", json!(-1)),
        ("top_p", json!(2)),
        ("n", json!(0)),
        ("n", json!(10_000)),
        ("seed", json!("x")),
        ("stop", json!({"a": 1})),
        ("stop", json!([1])),
        ("max_tokens", json!("many")),
        ("max_tokens", json!(-7)),
        ("logit_bias", json!([1])),
        ("stream", json!("yes")),
        ("messages", json!("hi")),
        ("messages", json!([])),
        ("logprobs", json!(3)),
        ("top_logprobs", json!(99)),
        ("presence_penalty", json!(5)),
    ] {
        let mut body = question("a", 1);
        body[name] = value.clone();
        let response = server.client().post(CHAT, &body);
        assert_eq!(response.status(), 400, "{name}: {value}: {}", response.text());
        let error = error(&response);
        let param = error["param"].as_str().unwrap_or_default();
        assert!(param.starts_with(name), "{name}: {value}: {error}");
    }
    let odd_role = json!({"messages": [{"role": "wizard", "content": "a"}], "max_tokens": 1});
    let response = server.client().post(CHAT, &odd_role);
    assert_eq!(response.status(), 400, "an unknown role: {}", response.text());
    let response = server.client().post(CHAT, &question("explode", 1));
    assert_eq!(response.status(), 400, "a template that raises: {}", response.text());
    assert!(error(&response)["message"].as_str().unwrap().contains("as it was told"));
    server.finish();
}

#[test]
fn bodies_that_are_no_request_are_refused_and_harm_nobody() {
    let server = server();
    let deep = "[".repeat(100_000);
    let nested = format!("{{\"messages\": {}}}", "[".repeat(50_000));
    let surrogate = br#"{"messages":[{"role":"user","content":"\ud800"}],"max_tokens":1}"#;
    let raw = b"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}";
    let bodies: [&[u8]; 8] =
        [b"", b"hello", b"[]", b"{", deep.as_bytes(), nested.as_bytes(), surrogate, raw];
    for body in bodies {
        let response = server.client().post_bytes(CHAT, body);
        let start = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!(response.status(), 400, "{start}: {}", response.text());
        error(&response);
    }
    let large = vec![b' '; 50 << 20];
    let response = server.client().post_bytes(CHAT, &large);
    assert_eq!(response.status(), 413, "{}", response.text());
    whole(&server.client().post(CHAT, &question("still there?", 3)));
    assert_eq!(server.recycles(), 0);
    server.finish();
}

#[test]
fn a_prompt_over_the_context_is_refused_before_headers() {
    let server = Setup::fake("").flag("--context", "256").serve();
    let mut body = question(&"x".repeat(300), 5);
    for stream in [false, true] {
        body["stream"] = json!(stream);
        let response = server.client().post(CHAT, &body);
        assert_eq!(response.status(), 400, "{}", response.text());
        let error = error(&response);
        assert_eq!(error["n_ctx"], 256, "{error}");
        assert!(error["n_prompt_tokens"].as_u64().unwrap() > 256, "{error}");
    }
    let answer = whole(&server.client().post(CHAT, &question(&"x".repeat(200), 1000)));
    assert_eq!(answer.end(), "length", "the context's end is an end");
    server.finish();
}

#[test]
fn special_tokens_typed_by_a_user_stay_text() {
    let server = server();
    let empty = prompt_tokens(&server, "");
    for special in ["<|im_end|>", "<|im_start|>", "<|endoftext|>"] {
        let count = prompt_tokens(&server, special) - empty;
        assert_eq!(count, special.len() as u64, "{special} must be as many tokens as bytes");
    }
    server.finish();
}

#[test]
fn odd_texts_are_answered_in_bounded_time() {
    let server = Setup::fake("end_every=0").flag("--context", "131072").serve();
    let cases = [
        ("50 KB of one character", "a".repeat(50_000), 50_000),
        ("1,000 emoji", "😀".repeat(1000), 4000),
        ("combining marks", format!("e{}", "\u{301}".repeat(5000)), 1000),
        ("control characters", (0_u8..32).map(char::from).collect(), 32),
        ("newlines", "\n".repeat(20_000), 1),
        ("spaces", " ".repeat(50_000), 1),
    ];
    for (name, content, least) in cases {
        let start = Instant::now();
        let count = prompt_tokens(&server, &content);
        assert!(count >= least, "{name}: {count} tokens");
        assert!(start.elapsed() < Duration::from_secs(20), "{name}: {:?}", start.elapsed());
    }
    server.finish();
}

#[test]
fn stop_strings_end_the_text_exactly() {
    let server = server();
    let full = whole(&server.client().post(CHAT, &question("stop", 60))).text().to_owned();
    let (first, second) = (&full[20..24], &full[40..43]);
    let start = full.find(first).unwrap().min(full.find(second).unwrap());
    for stream in [false, true] {
        let mut body = question("stop", 60);
        body["stop"] = json!([second, first, "never to be seen"]);
        let answer = if stream {
            let answer = server.chat(&body);
            answer.assert_whole(1);
            answer
        } else {
            whole(&server.client().post(CHAT, &body))
        };
        assert_eq!(answer.end(), "stop");
        assert_eq!(answer.text(), &full[..start]);
    }
    server.finish();
}

#[test]
fn choices_differ_and_a_seed_repeats_them() {
    let server = server();
    let mut body = question("choose", 30);
    body["n"] = json!(3);
    body["temperature"] = json!(0.8);
    body["seed"] = json!(7);
    let first = whole(&server.client().post(CHAT, &body));
    assert_eq!(first.choices.len(), 3);
    assert_ne!(first.choices[&0].text, first.choices[&1].text);
    let streamed = server.chat(&body);
    streamed.assert_whole(3);
    for index in 0..3 {
        assert_eq!(streamed.choices[&index].text, first.choices[&index].text);
    }
    body["seed"] = json!(8);
    assert_ne!(whole(&server.client().post(CHAT, &body)).choices, first.choices);
    server.finish();
}

#[test]
fn logprobs_come_with_every_token() {
    let server = server();
    let mut body = question("log", 12);
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(3);
    let streamed = server.chat(&body);
    streamed.assert_whole(1);
    let answer = whole(&server.client().post(CHAT, &body));
    for entries in [&streamed.choices[&0].logprobs, &answer.choices[&0].logprobs] {
        assert_eq!(entries.len(), 12);
        for entry in entries {
            assert!(entry["logprob"].as_f64().unwrap() <= 0.0, "{entry}");
            assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 3);
            assert!(entry["bytes"].is_array(), "{entry}");
        }
    }
    server.finish();
}

#[test]
fn a_client_that_goes_away_cancels_its_request() {
    let server = Setup::fake("end_every=0; token_ms=20; chunk_ms=50").serve();
    let mut stream = server.open_chat(&question("bye", 2000)).unwrap();
    while stream.answer.text().is_empty() {
        assert!(stream.step().unwrap());
    }
    drop(stream);
    let counts = |name: &str| server.status()["requests"][name].as_u64().unwrap();
    wait_until("the cancel in decode", Duration::from_secs(5), || {
        counts("cancelled") == 1 && counts("active") == 0
    });
    let long = question(&"p".repeat(6000), 5);
    drop(server.open_chat(&long).unwrap());
    wait_until("the cancel in prefill", Duration::from_secs(5), || {
        counts("cancelled") == 2 && counts("active") == 0
    });
    whole(&server.client().post(CHAT, &question("next", 3)));
    assert_eq!(server.recycles(), 0);
    server.finish();
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let setup = Setup::fake("end_every=0; token_ms=20");
    let server = setup.flag("--slots", "1").flag("--queue-limit", "1").serve();
    let running = server.open_chat(&question("one", 500)).unwrap();
    let waiting = server.open_chat(&question("two", 500)).unwrap();
    let refused = server.client().post(CHAT, &question("three", 5));
    assert_eq!(refused.status(), 429, "{}", refused.text());
    let seconds: u32 = refused.head.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    drop((running, waiting));
    server.finish();
}

#[test]
fn a_first_load_is_told_honestly() {
    let server = Setup::fake("load_ms=1500").start();
    assert_eq!(server.client().get("/livez").status(), 200);
    for path in ["/readyz", "/health"] {
        assert_eq!(server.client().get(path).status(), 503, "{path}");
    }
    assert_eq!(server.client().get("/v1/models").status(), 200);
    let refused = server.client().post(CHAT, &question("now?", 3));
    assert_eq!(refused.status(), 503, "{}", refused.text());
    assert!(refused.head.field("retry-after").is_some());
    server.wait_ready();
    whole(&server.client().post(CHAT, &question("now?", 3)));
    server.finish();
}

#[test]
fn a_key_is_asked_for_where_one_is_set() {
    let server = Setup::fake("").flag("--api-keys", "correct horse").serve();
    let body = question("a", 2).to_string();
    let ask = |key: &str| {
        let bearer = format!("Bearer {key}");
        let fields = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        server.client().request("POST", CHAT, &fields, body.as_bytes()).unwrap().status()
    };
    assert_eq!(server.client().post(CHAT, &question("a", 2)).status(), 401);
    assert_eq!(ask("wrong horse"), 401);
    assert_eq!(ask("correct horse"), 200);
    assert!(!server.log().contains("correct horse"), "keys are never logged");
    server.finish();
}

#[test]
fn routes_methods_and_connections() {
    let server = server();
    let client = server.client();
    assert_eq!(client.get("/no/such/thing").status(), 404);
    error(&client.get("/no/such/thing"));
    assert_eq!(client.get(CHAT).status(), 405);
    let models = client.get("/v1/models").json();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"].as_array().unwrap().len(), 1);
    assert!(client.get("/metrics").text().contains("# TYPE"));
    let status = server.status();
    for path in [
        "/state",
        "/worker/pid",
        "/worker/incarnation",
        "/worker/state",
        "/worker/uptime_s",
        "/recycles/total",
        "/recycles/by_reason",
        "/requests/active",
        "/requests/queued",
        "/requests/total",
        "/model/name",
        "/model/arch",
        "/model/n_ctx",
    ] {
        assert!(status.pointer(path).is_some(), "{path} in {status}");
    }
    // Two requests on one connection.
    let mut connection = client.connect().unwrap();
    for _ in 0..2 {
        let request = format!("GET /livez HTTP/1.1\r\nhost: {}\r\n\r\n", server.address());
        connection.write_all(request.as_bytes()).unwrap();
        let (head, mut body) = Body::read_head(connection.try_clone().unwrap()).unwrap();
        body.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(head.status, 200);
    }
    server.finish();
}

/// Opens a long stream on a connection with the smallest receive buffer Linux gives.
fn open_narrow(server: &Server, tokens: u32) -> TcpStream {
    let mut body = question("flow", tokens);
    body["stream"] = json!(true);
    let mut connection = server.client().connect().unwrap();
    nix::sys::socket::setsockopt(&connection, nix::sys::socket::sockopt::RcvBuf, &4096).unwrap();
    let text = body.to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n",
        server.address(),
        text.len()
    );
    connection.write_all((head + &text).as_bytes()).unwrap();
    connection.read_exact(&mut [0]).unwrap();
    connection
}

#[test]
fn a_client_that_reads_a_byte_now_and_then_slows_nobody() {
    let setup = Setup::fake("end_every=0").flag("--context", "131072");
    let server = setup.flag("--client-stall-timeout-s", "60").serve();
    let baseline = process::anonymous_memory(server.pid());
    let mut slow = open_narrow(&server, 120_000);
    for _ in 0..20 {
        slow.read_exact(&mut [0]).unwrap();
        let start = Instant::now();
        whole(&server.client().post(CHAT, &question("quick", 50)));
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
    let grown = process::anonymous_memory(server.pid()).saturating_sub(baseline);
    assert!(grown < 64 << 20, "one slow reader cost {grown} bytes");
    drop(slow);
    server.finish();
}

#[test]
fn a_client_that_reads_nothing_slows_nobody_and_is_cut() {
    let setup = Setup::fake("end_every=0").flag("--context", "131072");
    let server = setup.flag("--client-stall-timeout-s", "2").serve();
    let baseline = process::anonymous_memory(server.pid());
    let connection = open_narrow(&server, 120_000);
    let start = Instant::now();
    whole(&server.client().post(CHAT, &question("quick", 50)));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    wait_until("the idle reader to be cut", Duration::from_secs(60), || {
        server.status()["requests"]["active"] == 0
    });
    let grown = process::anonymous_memory(server.pid()).saturating_sub(baseline);
    assert!(grown < 64 << 20, "one idle reader cost {grown} bytes");
    drop(connection);
    server.finish();
}
