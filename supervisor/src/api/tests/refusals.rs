use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use shared::config::Config;
use shared::limits::{BODY_BYTES_MAX, LOGIT_BIAS_MAX};

use super::mock::{Script, Server, greeting};
use crate::event_loop::Rejection;
use crate::status::ServiceState;

/// Every optional field of the two routes.
const OPTIONAL: [&str; 38] = [
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "repetition_penalty",
    "repeat_last_n",
    "seed",
    "stop",
    "n",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "response_format",
    "grammar",
    "json_schema",
    "functions",
    "function_call",
    "n_predict",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "chat_template_kwargs",
    "add_generation_prompt",
    "ignore_eos",
    "user",
    "echo",
    "suffix",
    "best_of",
    "no_such_field",
];

fn greeter() -> Server {
    Server::new(Script::Steps(greeting()))
}

#[tokio::test]
async fn null_counts_as_absent_for_every_optional_field() {
    let server = greeter();
    for name in OPTIONAL {
        assert_eq!(server.chat(json!({name: null})).await.status, 200, "{name}");
        let answer = server.completion(json!({"prompt": "a", name: null})).await;
        assert_eq!(answer.status, 200, "{name}");
    }
    let all = OPTIONAL.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
    assert_eq!(server.chat(Value::Object(all)).await.status, 200);
    assert_eq!(server.chat(json!({"messages": null})).await.status, 400);
}

#[tokio::test]
async fn wrong_types_and_ranges_are_refused_with_the_name_of_the_field() {
    let server = greeter();
    for (param, value) in [
        ("model", json!(1)),
        ("stream", json!("yes")),
        ("stream_options", json!(true)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(1.5)),
        ("max_completion_tokens", json!("5")),
        ("temperature", json!("hot")),
        ("temperature", json!(-0.1)),
        ("temperature", json!(2.1)),
        ("top_p", json!(1.1)),
        ("top_k", json!(-2)),
        ("top_k", json!(0.5)),
        ("min_p", json!([])),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-3)),
        ("repeat_penalty", json!(0)),
        ("repetition_penalty", json!({})),
        ("repeat_last_n", json!(-2)),
        ("seed", json!("a")),
        ("seed", json!(0.5)),
        ("stop", json!(5)),
        ("stop", json!(["a", 1])),
        ("stop", json!(vec!["a"; 17])),
        ("stop", json!("a".repeat(1025))),
        ("n", json!(0)),
        ("n", json!(9)),
        ("n", json!(true)),
        ("logprobs", json!("yes")),
        ("logit_bias", json!("x")),
        ("logit_bias", json!({"300": 1})),
        ("logit_bias", json!({"a": 1})),
        ("logit_bias", json!({"1": 101})),
        ("logit_bias", json!([[1]])),
        ("ignore_eos", json!(1)),
        ("n_predict", json!(0)),
        ("grammar", json!("root ::= \"a\"")),
        ("json_schema", json!({})),
        ("functions", json!([{"name": "f"}])),
        ("function_call", json!({"name": "f"})),
        ("response_format", json!({"type": "json_object"})),
        ("response_format", json!({"type": "json_schema", "json_schema": {}})),
        ("response_format", json!("json")),
    ] {
        for answer in [
            server.chat(json!({param: value, "top_logprobs": null})).await,
            server.completion(json!({"prompt": "a", param: value})).await,
        ] {
            let body = answer.json();
            assert_eq!(answer.status, 400, "{param}: {value}");
            assert_eq!(body["error"]["param"], param, "{body}");
            assert_eq!(body["error"]["type"], "invalid_request_error");
            assert_eq!(body["error"]["code"], 400);
            assert!(body["error"]["message"].as_str().unwrap().contains(param), "{body}");
        }
    }
    assert!(server.mock.requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_only_one_route_knows_is_checked_there() {
    let server = greeter();
    for (param, value) in [
        ("top_logprobs", json!(3)),
        ("messages", json!([])),
        ("messages", json!("hi")),
        ("messages[0]", json!(["hi"])),
        ("tools", json!({})),
        ("tools", json!([1])),
        ("tool_choice", json!("required")),
        ("tool_choice", json!({"type": "function"})),
        ("chat_template_kwargs", json!([])),
        ("add_generation_prompt", json!(0)),
    ] {
        let field = param.trim_end_matches("[0]");
        let answer = server.chat(json!({field: value})).await;
        assert_eq!(
            (answer.status.as_u16(), answer.json()["error"]["param"].as_str()),
            (400, Some(param))
        );
    }
    for (param, value) in [
        ("echo", json!(true)),
        ("suffix", json!("x")),
        ("best_of", json!(2)),
        ("logprobs", json!(true)),
        ("logprobs", json!(21)),
        ("prompt", json!(null)),
        ("prompt", json!(5)),
        ("prompt", json!("")),
        ("prompt", json!([])),
        ("prompt", json!([[]])),
        ("prompt", json!([256])),
        ("prompt", json!([-1])),
        ("prompt", json!([97, "a"])),
        ("prompt", json!([["a"]])),
        ("prompt", json!(vec!["a"; 65])),
    ] {
        let mut fields = json!({"prompt": "a"});
        fields[param] = value;
        let answer = server.completion(fields).await;
        assert_eq!(
            (answer.status.as_u16(), answer.json()["error"]["param"].as_str()),
            (400, Some(param))
        );
    }
    let answer = server.chat(json!({"messages": [{"role": "raise"}]})).await;
    assert_eq!(answer.status, 400);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("roles must alternate"));
}

#[tokio::test]
async fn a_constraint_that_asks_for_nothing_passes() {
    let server = greeter();
    for fields in [
        json!({"response_format": {"type": "text"}}),
        json!({"response_format": {}}),
        json!({"grammar": "", "functions": [], "function_call": "none"}),
    ] {
        let mut classic = fields.clone();
        classic["prompt"] = "a".into();
        assert_eq!(server.chat(fields.clone()).await.status, 200, "{fields}");
        assert_eq!(server.completion(classic).await.status, 200, "{fields}");
    }
}

#[tokio::test]
async fn what_the_api_accepts_at_its_bounds_the_worker_accepts() {
    let server = greeter();
    let many: Vec<_> = (0..LOGIT_BIAS_MAX).map(|_| json!([97, 100])).collect();
    let sweep = [
        ("temperature", vec![json!(0), json!(1e-300), json!(1e-45), json!(2)]),
        ("top_p", vec![json!(0), json!(0.0), json!(1e-300), json!(1e-45), json!(1)]),
        ("min_p", vec![json!(0), json!(1e-300), json!(1e-45), json!(1)]),
        ("top_k", vec![json!(-1), json!(0), json!(1), json!(u32::MAX)]),
        ("repeat_penalty", vec![json!(0.01), json!(10)]),
        ("repetition_penalty", vec![json!(0.01), json!(10)]),
        ("frequency_penalty", vec![json!(-2), json!(2)]),
        ("presence_penalty", vec![json!(-2), json!(2)]),
        ("repeat_last_n", vec![json!(-1), json!(0), json!(u32::MAX)]),
        ("seed", vec![json!(-1), json!(i64::MIN), json!(u64::MAX), json!(0)]),
        ("logit_bias", vec![json!({"0": -100, "255": 100}), json!(many), json!([[97, false]])]),
        ("ignore_eos", vec![json!(true)]),
        ("n", vec![json!(1), json!(8)]),
    ];
    let ends = [("top_logprobs", 0), ("top_logprobs", 20), ("logprobs", 0), ("logprobs", 20)];
    for (name, values) in &sweep {
        for value in values {
            let answer = server.chat(json!({*name: value})).await;
            assert_eq!(answer.status, 200, "{name}: {value}");
            let answer = server.completion(json!({"prompt": "a", *name: value})).await;
            assert_eq!(answer.status, 200, "{name}: {value}");
        }
    }
    for (name, count) in ends {
        let answer = if name == "logprobs" {
            server.completion(json!({"prompt": "a", name: count})).await
        } else {
            server.chat(json!({"logprobs": true, name: count})).await
        };
        assert_eq!(answer.status, 200, "{name}: {count}");
    }
    for request in server.mock.requests.lock().unwrap().iter() {
        for sampling in &request.choices {
            assert_eq!(sampling.check(256), Ok(()), "{sampling:?}");
        }
    }
}

#[tokio::test]
async fn a_list_of_prompts_is_bounded_with_its_choices() {
    let server = greeter();
    for (prompts, n, status) in [(16, 8, 200), (64, 2, 200), (17, 8, 400), (64, 3, 400)] {
        let answer = server.completion(json!({"prompt": vec!["a"; prompts], "n": n})).await;
        assert_eq!(answer.status, status, "{prompts} prompts, {n} choices");
        if status == 400 {
            assert_eq!(answer.json()["error"]["param"], "prompt");
        }
    }
    let ids = vec![97; 300];
    assert_eq!(server.completion(json!({"prompt": ids, "n": 8})).await.status, 200, "one prompt");
    assert_eq!(server.mock.requests.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn a_refusal_comes_before_the_headers_of_a_stream() {
    for (rejection, status, kind) in [
        (Rejection::TooLong { n_prompt: 600, n_ctx: 512 }, 400, "exceed_context_size_error"),
        (Rejection::QueueFull { limit: 64, retry_after_s: 3 }, 429, "rate_limit_error"),
        (
            Rejection::Loading { retry_after_s: 7, done_bytes: 1, total_bytes: 2 },
            503,
            "unavailable_error",
        ),
        (Rejection::Held { cause: "operator".to_owned() }, 503, "unavailable_error"),
        (Rejection::Draining, 503, "unavailable_error"),
    ] {
        let retry_after = match &rejection {
            Rejection::QueueFull { .. } => Some("3"),
            Rejection::Loading { .. } => Some("7"),
            Rejection::Draining => Some("1"),
            _ => None,
        };
        let server = Server::new(Script::Reject(rejection));
        let answer = server.chat(json!({"stream": true})).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.json()["error"]["type"], kind);
        let header = answer.headers.get("retry-after").map(|value| value.to_str().unwrap());
        assert_eq!(header, retry_after);
        if status == 400 {
            assert_eq!(answer.json()["error"]["n_prompt_tokens"], 600);
            assert_eq!(answer.json()["error"]["n_ctx"], 512);
        }
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_announced_or_not() {
    let server = greeter();
    let large = vec![b' '; BODY_BYTES_MAX + 1];
    let announced = Request::post("/v1/completions").header("content-length", large.len());
    let answer = server.send(announced.body(Body::from(large.clone())).unwrap()).await;
    assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].clone()), (413, json!(413)));
    let pieces = large.chunks(1 << 20).map(|piece| Ok::<_, std::io::Error>(piece.to_vec()));
    let pieces = Body::from_stream(futures_util::stream::iter(pieces.collect::<Vec<_>>()));
    assert_eq!(server.post("/v1/completions", pieces).await.status, 413);
    let filled = json!({"prompt": "a".repeat(BODY_BYTES_MAX - 100)});
    assert_eq!(server.completion(filled).await.status, 200);
}

#[tokio::test]
async fn unknown_paths_and_methods_answer_in_json() {
    let server = greeter();
    let answer = server.get("/no/such/route").await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["error"]["type"].clone()),
        (404, json!("not_found_error"))
    );
    let answer = server.get("/v1/chat/completions").await;
    assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].clone()), (405, json!(405)));
}

#[tokio::test]
async fn a_key_is_asked_for_except_by_probes_and_the_list_of_models() {
    let keys = vec!["first-key".to_owned(), "second-key".to_owned()];
    let config = Config { api_keys: keys, ..Config::default() };
    let server = Server::configured(Script::Steps(greeting()), ServiceState::Serving, config);
    for path in ["/health", "/v1/health", "/livez", "/readyz", "/models", "/v1/models"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    for path in ["/status", "/metrics"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 401);
        assert_eq!(answer.json()["error"]["type"], "authentication_error");
    }
    for (name, value, status) in [
        ("authorization", "Bearer second-key", 200),
        ("authorization", "bearer first-key", 200),
        ("authorization", "Bearer second-ke", 401),
        ("authorization", "Basic second-key", 401),
        ("authorization", "Bearer", 401),
        ("x-api-key", "first-key", 200),
        ("x-api-key", "", 401),
    ] {
        let request = Request::get("/status").header(name, value).body(Body::empty()).unwrap();
        assert_eq!(server.send(request).await.status, status, "{name}: {value}");
    }
}

#[tokio::test]
async fn without_a_key_only_this_machine_may_ask() {
    let server = greeter();
    for (name, value, status) in [
        ("host", "localhost:8080", 200),
        ("host", "rebound.example:8080", 403),
        ("origin", "http://localhost:3000", 200),
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
    ] {
        let request = Request::get("/status").header(name, value).body(Body::empty()).unwrap();
        let answer = server.send(request).await;
        assert_eq!(answer.status, status, "{name}: {value}");
        if status == 403 {
            assert_eq!(answer.json()["error"]["type"], "permission_error");
        }
    }
}
