use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use shared::config::Config;

use super::mock::{Script, Server, Step, end, failure, greeting, token_with_logprobs};
use crate::session::log::{Outcome, Record};
use crate::status::ServiceState;

#[tokio::test]
async fn a_whole_chat_answer() {
    let server = Server::new(Script::Steps(greeting()));
    let answer = server.chat(json!({})).await.json();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    assert_eq!(answer["choices"][0]["message"]["content"], "Hi é!");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    for (key, value) in answer["timings"].as_object().unwrap() {
        assert!(value.is_number(), "{key}");
    }
}

#[tokio::test]
async fn every_prompt_of_a_list_gets_its_choices_in_order() {
    let server = Server::new(Script::Steps(greeting()));
    for prompt in [json!(["ab", "c"]), json!([[97, 98], [99]])] {
        let answer = server.completion(json!({"prompt": prompt, "n": 2})).await.json();
        let choices = answer["choices"].as_array().unwrap();
        let indices: Vec<_> = choices.iter().map(|choice| choice["index"].clone()).collect();
        assert_eq!(indices, [0, 1, 2, 3]);
        assert_eq!(answer["usage"]["prompt_tokens"], 3);
        let requests = std::mem::take(&mut *server.mock.requests.lock().unwrap());
        assert_eq!(requests.len(), 1, "one request, so that it is accepted whole or not at all");
        assert_eq!(requests[0].choices.len(), 2);
        let lengths: Vec<_> = requests[0].prompts.iter().map(|prompt| prompt.len()).collect();
        assert_eq!(lengths, [2, 1]);
    }
    for prompt in [json!("ab"), json!([97, 98]), json!(["ab"])] {
        let answer = server.completion(json!({"prompt": prompt})).await.json();
        assert_eq!(answer["choices"][0]["text"], "Hi é!");
        assert_eq!(answer["usage"]["prompt_tokens"], 2);
    }
}

#[tokio::test]
async fn classic_logprobs_are_parallel_lists() {
    let steps = vec![Step::Give(vec![
        token_with_logprobs(97, "a"),
        token_with_logprobs(99, "é"),
        token_with_logprobs(0, ""),
        end("", Outcome::Stop),
    ])];
    let server = Server::new(Script::Steps(steps));
    let answer = server.completion(json!({"prompt": "x", "logprobs": 2})).await.json();
    let expected = json!({
        "tokens": ["a", "c"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"a": -0.5, "b": -1.0}, {"c": -0.5, "b": -1.0}],
        "text_offset": [0, 1],
    });
    assert_eq!(answer["choices"][0]["logprobs"], expected);
    let answer = server.chat(json!({"logprobs": true})).await.json();
    assert_eq!(answer["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn classic_offsets_count_what_a_stop_string_holds_back() {
    let mut records = vec![
        token_with_logprobs(97, "a"),
        token_with_logprobs(98, ""),
        token_with_logprobs(99, "bc"),
        token_with_logprobs(100, "d"),
    ];
    for record in &mut records {
        let Record::Token { chars, .. } = record else { unreachable!() };
        *chars = 1;
    }
    records.push(end("", Outcome::Length));
    let server = Server::new(Script::Steps(vec![Step::Give(records)]));
    let fields = json!({"prompt": "x", "logprobs": 0, "stop": "bx"});
    let answer = server.completion(fields.clone()).await.json();
    assert_eq!(answer["choices"][0]["text"], "abcd");
    assert_eq!(answer["choices"][0]["logprobs"]["text_offset"], json!([0, 1, 2, 3]));
    let mut streamed = fields;
    streamed["stream"] = true.into();
    let offsets: Vec<Value> = server
        .completion(streamed)
        .await
        .events()
        .iter()
        .filter_map(|event| event.pointer("/choices/0/logprobs/text_offset/0").cloned())
        .collect();
    assert_eq!(offsets, [0, 1, 2, 3]);
}

#[tokio::test]
async fn ignored_end_tokens_are_banned_on_both_routes() {
    let server = Server::new(Script::Steps(greeting()));
    server.chat(json!({"ignore_eos": true, "logit_bias": {"0": 100}})).await;
    server.completion(json!({"prompt": "x", "ignore_eos": true})).await;
    server.chat(json!({"ignore_eos": false})).await;
    let requests = server.mock.requests.lock().unwrap();
    let bias = |request: usize| -> f32 {
        let biases = &requests[request].choices[0].logit_bias;
        biases.iter().filter(|(token, _)| token.0 == 0).map(|(_, bias)| bias).sum()
    };
    assert!(bias(0) < -1.0e8 && bias(1) < -1.0e8, "also against a wish for them");
    assert_eq!(bias(2), 0.0);
}

#[tokio::test]
async fn the_limit_of_tokens_has_three_names() {
    let server = Server::new(Script::Steps(greeting()));
    server.chat(json!({"n_predict": 7})).await;
    server.chat(json!({"n_predict": 7, "max_tokens": 8})).await;
    server.completion(json!({"prompt": "x", "n_predict": -1})).await;
    let requests = server.mock.requests.lock().unwrap();
    let limits: Vec<_> = requests.iter().map(|request| request.max_tokens).collect();
    assert_eq!(limits, [Some(7), Some(8), None]);
}

#[tokio::test]
async fn a_failure_is_an_error_that_says_whether_to_resend() {
    let steps = vec![Step::Give(vec![end("", Outcome::Failed(failure()))])];
    let answer = Server::new(Script::Steps(steps)).chat(json!({})).await;
    assert_eq!(answer.status, 500);
    assert_eq!(answer.headers["x-should-retry"], "false");
    assert_eq!(answer.json()["error"]["kind"], "nonfinite");
}

#[tokio::test]
async fn what_a_request_says_reaches_the_sampler_and_silence_takes_the_defaults() {
    let server = Server::new(Script::Steps(greeting()));
    let fields = json!({
        "temperature": 0, "top_k": -1, "top_p": 1.0, "min_p": 0, "seed": 7, "max_tokens": 9,
        "max_completion_tokens": 5, "stop": ["x", ""], "frequency_penalty": 1,
        "repetition_penalty": 1.5, "logit_bias": {"97": -100, "98": 3}, "ignore_eos": true,
    });
    server.chat(fields).await;
    server.chat(json!({"stop": "y", "logit_bias": [["ab", 1], [99, false]], "seed": -2})).await;
    server.chat(json!({})).await;
    let requests = server.mock.requests.lock().unwrap();
    let drawn = &requests[0].choices[0];
    assert_eq!((drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p), (0.0, 0, 1.0, 0.0));
    assert_eq!((drawn.seed, drawn.frequency_penalty, drawn.repeat_penalty), (7, 1.0, 1.5));
    assert_eq!(drawn.logit_bias.len(), 3, "two, and the ban of the end token");
    assert_eq!((requests[0].max_tokens, requests[0].end_tokens), (Some(5), false));
    assert_eq!(requests[0].stops, ["x"]);
    let drawn = &requests[1].choices[0];
    assert_eq!(drawn.logit_bias.len(), 3);
    assert!(drawn.logit_bias[2].1 < -1.0e8);
    assert_eq!(drawn.seed, u64::MAX - 1);
    let drawn = &requests[2].choices[0];
    assert_eq!((drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p), (0.8, 40, 0.95, 0.05));
    assert_eq!((requests[2].max_tokens, requests[2].end_tokens), (None, true));
}

#[tokio::test]
async fn probes_answer_in_every_state_and_readiness_is_true_only_when_serving() {
    for state in [
        ServiceState::Loading,
        ServiceState::Serving,
        ServiceState::Recycling,
        ServiceState::BackingOff,
        ServiceState::Degraded,
        ServiceState::Held,
        ServiceState::Draining,
    ] {
        let script = Script::Steps(Vec::new());
        let server = Server::configured(script, state, Config::default());
        let expected = if state == ServiceState::Serving { 200 } else { 503 };
        for path in ["/health", "/v1/health", "/readyz"] {
            let answer = server.get(path).await;
            assert_eq!(answer.status, expected);
            if expected == 503 {
                let is_held = state == ServiceState::Held;
                let no = answer.headers.get("x-should-retry").is_some_and(|it| it == "false");
                assert_eq!((no, answer.headers.contains_key("retry-after")), (is_held, !is_held));
                assert_eq!(answer.json()["error"]["type"], "unavailable_error");
            }
        }
        assert_eq!(server.get("/livez").await.status, 200);
        assert_eq!(server.get("/v1/models").await.json()["data"][0]["id"], "tiny");
        assert_eq!(server.get("/v1/models/tiny").await.status, 200);
        assert_eq!(server.get("/v1/models/other").await.status, 404);
        assert_eq!(server.get("/status").await.json()["model"]["n_ctx"], 512);
    }
}

#[tokio::test]
async fn each_metric_has_help_and_type_once() {
    let server = Server::new(Script::Steps(Vec::new()));
    let answer = server.get("/metrics").await;
    assert!(answer.headers.contains_key("process-start-time-unix"));
    let mut known = std::collections::BTreeSet::new();
    for line in answer.text().lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(known.insert(rest.split(' ').next().unwrap().to_owned()), "{line}");
        } else if !line.starts_with('#') {
            assert!(known.contains(line.split(['{', ' ']).next().unwrap()), "{line}");
        }
    }
    assert!(answer.text().contains(r#"{reason="SIG\"KILL"} 2"#));
    assert!(known.contains("llamacpp:tokens_predicted_total"));
}

#[tokio::test]
async fn orders_are_taken_on_the_control_socket_alone() {
    let server = Server::new(Script::Steps(Vec::new()));
    let post =
        |path: &str, body: &str| Request::post(path).body(Body::from(body.to_owned())).unwrap();
    assert_eq!(server.send(post("/admin/recycle", "")).await.status, 404);
    let answer = server.send_control(post("/admin/recycle", r#"{"now": true}"#)).await;
    assert_eq!(answer.json(), json!({"message": "now: true", "incarnation": 3}));
    let answer = server.send_control(post("/admin/recycle", "")).await;
    assert_eq!(answer.json()["message"], "now: false");
    assert_eq!(server.send_control(post("/admin/hold", "")).await.status, 200);
    let answer = server.send_control(post("/admin/release", "")).await;
    assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].clone()), (409, json!(409)));
}
