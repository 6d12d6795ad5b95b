//! Whatever arrives, the parsers answer; they never panic, and what they refuse is the client's.

use proptest::collection::{btree_map, vec};
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::sample::select;
use serde_json::{Map, Value, json};

use super::mock::ByteWords;
use crate::api::body::parse_object;
use crate::api::fields::Fields;
use crate::api::{chat, completions};

/// Names the parsers look at, so that arbitrary values meet them.
const NAMES: [&str; 36] = [
    "messages",
    "prompt",
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "n",
    "seed",
    "stop",
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
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "response_format",
    "tools",
    "tool_choice",
    "echo",
    "suffix",
    "best_of",
    "chat_template_kwargs",
    "ignore_eos",
    "n_predict",
    "grammar",
    "json_schema",
    "functions",
    "function_call",
    "no_such_field",
];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-2_i64..300).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        select(vec!["user", "text", "auto", "none", "97"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn check(fields: &Map<String, Value>) {
    let words = ByteWords::default();
    for prepare in [chat::prepare, completions::prepare] {
        match prepare(Fields::new(fields.clone()), &words, 8) {
            Ok(prepared) => {
                assert!(!prepared.prompts.is_empty());
                let sampling = &prepared.options.sampling;
                assert_eq!(sampling.check(256), Ok(()), "the worker takes what we took");
            }
            Err(error) => {
                assert!(error.status().is_client_error());
                let body = error.body();
                let message = body["error"]["message"].as_str().unwrap();
                assert!(!message.starts_with("sampling:"), "only the worker's rule: {message}");
            }
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_refused_or_parsed(bytes in vec(any::<u8>(), 0..400)) {
        match parse_object(&bytes) {
            Ok(fields) => check(&fields),
            Err(error) => assert_eq!(error.status().as_u16(), 400),
        }
    }

    #[test]
    fn arbitrary_values_in_known_fields_are_refused_or_taken(
        fields in btree_map(select(NAMES.as_slice()), value(), 0..8)
    ) {
        let mut fields: Map<String, Value> =
            fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        check(&fields);
        // With the required fields right, the optional ones are reached.
        fields.insert("messages".to_owned(), json!([{"role": "user", "content": "hi"}]));
        fields.insert("prompt".to_owned(), json!("hi"));
        check(&fields);
    }
}
