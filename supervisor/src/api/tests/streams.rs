use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use super::mock::{Script, Server, Step, end, failure, greeting, token, token_with_logprobs};
use crate::session::log::Outcome;

#[tokio::test]
async fn a_chat_stream_has_role_deltas_finish_usage_and_done_in_that_order() {
    let server = Server::new(Script::Steps(greeting()));
    let fields = json!({"stream": true, "stream_options": {"include_usage": true}});
    let answer = server.chat(fields).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert_eq!(answer.headers["cache-control"], "no-cache");
    assert_eq!(answer.headers["x-accel-buffering"], "no");
    assert!(answer.headers.contains_key("x-request-id"));
    assert!(answer.text().ends_with("\n\ndata: [DONE]\n\n"));
    let events = answer.events();
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    for chunk in chunks {
        for key in ["id", "created", "model", "system_fingerprint", "object"] {
            assert_eq!(chunk[key], chunks[0][key]);
        }
        assert_eq!(chunk["object"], "chat.completion.chunk");
    }
    assert!(chunks[0]["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(chunks[0]["system_fingerprint"].as_str().unwrap().starts_with('b'));
    let delta = json!({"role": "assistant", "content": null});
    assert_eq!(chunks[0]["choices"][0]["delta"], delta);
    let text: String =
        chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "Hi é!");
    assert!(chunks[1..].iter().all(|c| c["choices"][0]["delta"].get("role").is_none()));
    let finish = &chunks[chunks.len() - 2];
    assert_eq!(finish["choices"][0]["delta"], json!({}));
    assert_eq!(finish["choices"][0]["finish_reason"], "stop");
    assert_eq!(finish["usage"], Value::Null);
    let usage = chunks.last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 5);
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert!(usage["timings"]["predicted_per_second"].is_number());
}

#[tokio::test]
async fn a_classic_stream_ends_with_finish_and_done() {
    let server = Server::new(Script::Steps(greeting()));
    let answer = server.completion(json!({"prompt": "a", "stream": true})).await;
    let events = answer.events();
    let text: String = events.iter().filter_map(|c| c["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "Hi é!");
    let finish = &events[events.len() - 2];
    assert_eq!(finish["object"], "text_completion");
    assert_eq!(finish["choices"][0]["finish_reason"], "stop");
    assert_eq!(finish["usage"]["total_tokens"], 6);
    assert_eq!(events.last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn choices_interleave_and_each_finishes_once() {
    let steps = vec![
        Step::Give(vec![token(97, "a")]),
        Step::Give(vec![token(98, "b"), end("", Outcome::Length)]),
    ];
    let server = Server::new(Script::Steps(steps));
    let events = server.chat(json!({"stream": true, "n": 3})).await.events();
    for index in 0..3 {
        let mine: Vec<&Value> = events
            .iter()
            .filter_map(|event| event["choices"].get(0))
            .filter(|choice| choice["index"] == index)
            .collect();
        let text: String = mine.iter().filter_map(|c| c["delta"]["content"].as_str()).collect();
        assert_eq!(text, "ab");
        let ends = mine.iter().filter(|choice| choice["finish_reason"] == "length").count();
        assert_eq!(ends, 1);
    }
    let choices = server.mock.requests.lock().unwrap()[0].choices.clone();
    assert_eq!(choices.iter().map(|c| c.choice).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(choices.iter().all(|choice| choice.seed == choices[0].seed));
}

#[tokio::test(start_paused = true)]
async fn silence_is_broken_by_comments() {
    let steps = vec![
        Step::Wait(Duration::from_secs(13)),
        Step::Give(vec![token(195, "")]),
        Step::Wait(Duration::from_secs(5)),
        Step::Give(vec![end("x", Outcome::Stop)]),
    ];
    let server = Server::new(Script::Steps(steps));
    let answer = server.chat(json!({"stream": true})).await;
    assert_eq!(answer.text().matches(": ping\n\n").count(), 4);
    assert!(!answer.text().contains("retry:"));
    assert_eq!(answer.events().last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn a_failure_is_one_frame_without_done_and_cancels_the_other_choices() {
    let steps = vec![
        Step::Give(vec![token(97, "a")]),
        Step::Give(vec![end("", Outcome::Failed(failure()))]),
    ];
    let server = Server::new(Script::Steps(steps));
    let answer = server.chat(json!({"stream": true, "n": 2})).await;
    assert_eq!(answer.status, 200);
    let events = answer.events();
    let errors: Vec<&Value> = events.iter().filter_map(|event| event.get("error")).collect();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0], &events.last().unwrap()["error"]);
    let expected = json!({
        "message": "position 7 is not finite", "type": "server_error", "code": 500, "param": null,
        "kind": "nonfinite", "deterministic": true, "position": 7, "phase": "decode",
        "attempts": 3, "incarnation": 4, "retryable": false,
    });
    assert_eq!(errors[0], &expected);
    assert!(!answer.text().contains("[DONE]"));
    assert_eq!(server.mock.dropped.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn logprobs_ride_with_their_token_and_the_end_token_has_none() {
    let steps = vec![Step::Give(vec![
        token_with_logprobs(97, "a"),
        token_with_logprobs(195, ""),
        token_with_logprobs(0, ""),
        end("", Outcome::Stop),
    ])];
    let server = Server::new(Script::Steps(steps));
    let fields = json!({"stream": true, "logprobs": true, "top_logprobs": 2});
    let events = server.chat(fields).await.events();
    let entries: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].get(0))
        .collect();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0]["token"], "a");
    assert_eq!(entries[0]["top_logprobs"][1]["token"], "b");
    assert_eq!(entries[1]["bytes"], json!([195]));
    assert_eq!(server.mock.requests.lock().unwrap()[0].choices[0].logprobs, Some(2));
}

#[tokio::test]
async fn characters_that_line_readers_split_at_are_escaped() {
    let steps = vec![Step::Give(vec![token(97, "a\u{2028}b\u{85}\nc"), end("", Outcome::Stop)])];
    let server = Server::new(Script::Steps(steps));
    let answer = server.chat(json!({"stream": true})).await;
    assert!(!answer.text().contains(['\u{2028}', '\u{85}']));
    assert_eq!(answer.events()[1]["choices"][0]["delta"]["content"], "a\u{2028}b\u{85}\nc");
}
