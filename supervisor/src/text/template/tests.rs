use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::super::fixture::qwen35_header;
use super::super::vocabulary::Vocabulary;
use super::{ChatOptions, Template, TemplateError};

fn template(source: &str) -> Template {
    let vocabulary = Vocabulary::from_gguf(&qwen35_header().gguf()).unwrap();
    Template::new(Some(source), &vocabulary).unwrap()
}

fn render_with(
    source: &str,
    messages: &[Value],
    options: &ChatOptions,
) -> Result<String, TemplateError> {
    let template = template(source);
    let rendered = template.render(messages, options)?;
    Ok(template.escape().undo(&rendered).into_owned())
}

fn render(source: &str, messages: &[Value]) -> Result<String, TemplateError> {
    render_with(source, messages, &ChatOptions::default())
}

fn hi() -> [Value; 1] {
    [json!({"role": "user", "content": "hi"})]
}

#[test]
fn what_templates_take_from_python_works() {
    for (source, expected) in [
        (
            "{%- for m in messages %}\n    {%- if true %}\n{{ m['content'] }}\n    {% endif %}\
             \n{% endfor %}",
            "hi\n",
        ),
        ("{{ '  a b '.strip() ~ 'xay'.split('a')[-1] ~ 'abc'.replace('b', '') }}", "a byac"),
        (
            "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('x') }}{{ 'aB'.upper() }}\
             {{ 'aB'.lower() }}",
            "TrueFalseABab",
        ),
        ("{{ ' a'.lstrip() ~ 'a '.rstrip() ~ 'ab'.title() ~ ','.join(['x', 'y']) }}", "aaAbx,y"),
        ("{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "b1a2"),
        (
            "{{ messages[0].get('role') }}{{ messages[0].get('no', 'none') }}\
             {{ {'z': 1}.keys() | list | length }}",
            "usernone1",
        ),
        (
            "{% for x in range(9) %}{% if x == 1 %}{% continue %}{% endif %}{% if x > 2 %}\
             {% break %}{% endif %}{{ x }}{% endfor %}",
            "02",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}\
             {% endfor %}{{ ns.n }}",
            "1",
        ),
        ("{% generation %}a{%- endgeneration -%} b", "ab"),
        ("{{ none is iterable }}{{ [] is iterable }}{{ 'a' is iterable }}", "FalseTrueTrue"),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') }}", "abab"),
        (
            "{{ messages[::-1][0].role }}{{ messages[0].content[:1] }}{{ bos_token }}\
             |{{ eos_token }}",
            "userh|<|im_end|>",
        ),
        (
            "{{ tools is none }}{{ documents is none }}{{ absent is defined }}\
             {{ messages[0].content is string }}",
            "TrueTrueFalseTrue",
        ),
        ("{% set x = [1, 2] + [3] %}{{ x | tojson }}", "[1, 2, 3]"),
        ("{{ 'é\"<' | tojson }}", "\"é\\\"<\""),
        (
            "{{ {'b': [1, {'c': none}], 'a': true} | tojson }}",
            r#"{"b": [1, {"c": null}], "a": true}"#,
        ),
        (
            "{{ {'b': [1], 'a': {}} | tojson(indent=2) }}",
            "{\n  \"b\": [\n    1\n  ],\n  \"a\": {}\n}",
        ),
        (
            "{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}",
            r#"{"a":2,"b":1}"#,
        ),
        ("{{ 'é😀' | tojson(ensure_ascii=true) }}", r#""\u00e9\ud83d\ude00""#),
        (
            "{{ strftime_now('%Y') | length }}{{ messages | map(attribute='role') | join(',') }}",
            "4user",
        ),
        ("{% if messages[0].role == 'user' and 'i' in messages[0].content %}yes{% endif %}", "yes"),
    ] {
        assert_eq!(render(source, &hi()).as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn a_template_may_refuse_in_its_own_words() {
    let source =
        "{% if messages[0].role == 'user' %}{{ raise_exception('No ' + 'users!') }}{% endif %}";
    assert_eq!(render(source, &hi()), Err(TemplateError::Raised("No users!".to_owned())));
    let in_macro = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}";
    assert_eq!(render(in_macro, &hi()), Err(TemplateError::Raised("deep".to_owned())));
    let error = render("{{ messages[0].absent.more }}", &hi()).unwrap_err();
    assert!(matches!(error, TemplateError::Failed(_)), "{error}");
    assert_eq!(error.param(), Some("messages"));
}

#[test]
fn a_template_that_cannot_be_compiled_refuses_chats_only() {
    for broken in ["{% if %}", "{{ 'a' | nosuchfilter }}", "{% for x in y %}"] {
        let error = render(broken, &hi()).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
    assert!(matches!(render("{% if %}", &hi()), Err(TemplateError::Unusable(_))));
}

#[test]
fn time_and_output_are_bounded() {
    let start = Instant::now();
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% set c = a %}\
        {% endfor %}{% endfor %}";
    assert_eq!(render(endless, &hi()), Err(TemplateError::TooSlow));
    let long = "{% for a in range(9999) %}{{ 'x' * 99999 }}{% endfor %}";
    assert_eq!(render(long, &hi()), Err(TemplateError::TooLong));
    assert!(start.elapsed() < Duration::from_secs(60));
    let deep = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    assert!(matches!(render(deep, &hi()), Err(TemplateError::Failed(_))));
}

#[test]
fn contents_become_strings() {
    let source = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    let part = |text: &str| json!({"type": "text", "text": text});
    let messages = [
        json!({"role": "user", "content": [part("a"), part("b")]}),
        json!({"role": "assistant", "content": null}),
        json!({"role": "assistant"}),
        json!({"role": "tool", "content": "", "name": null}),
    ];
    assert_eq!(render(source, &messages).unwrap(), "[ab][][][]");
    let function = json!({"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"});
    let calls = json!([{"type": "function", "function": function}]);
    let messages = [json!({"role": "assistant", "tool_calls": calls})];
    let source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}";
    assert_eq!(render(source, &messages).unwrap(), r#"{"b": 1, "a": 2}"#);
    let source = "{{ 'args: ' + messages[0].tool_calls[0].function.arguments }}";
    assert_eq!(render(source, &messages).unwrap(), r#"args: {"b": 1, "a": 2}"#);
}

#[test]
fn wrong_messages_name_their_field() {
    for (message, param) in [
        (json!("x"), "messages[0]"),
        (json!({"content": "x"}), "messages[0].role"),
        (json!({"role": 1}), "messages[0].role"),
        (json!({"role": "robot", "content": "x"}), "messages[0].role"),
        (json!({"role": "user", "content": 7}), "messages[0].content"),
        (json!({"role": "user", "content": [{"type": "image_url"}]}), "messages[0].content[0]"),
        (json!({"role": "user", "content": ["x"]}), "messages[0].content[0]"),
        (json!({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text"),
        (json!({"role": "assistant", "tool_calls": 1}), "messages[0].tool_calls"),
    ] {
        let error = render("x", &[message]).unwrap_err();
        assert_eq!(error.param(), Some(param), "{error}");
    }
    assert_eq!(render("x", &[]).unwrap_err().param(), Some("messages"));
    let error = render("x", &[json!({"role": "robot"})]).unwrap_err().to_string();
    assert!(error.contains("robot") && error.contains("developer"), "{error}");
}

#[test]
fn a_developer_speaks_as_system_where_the_template_knows_no_developer() {
    let messages = [json!({"role": "developer", "content": ""})];
    assert_eq!(render("{{ messages[0].role }}", &messages).unwrap(), "system");
    assert_eq!(render("{{ messages[0].role }}{# developer #}", &messages).unwrap(), "developer");
}

#[test]
fn variables_reach_the_template_but_do_not_replace_its_own() {
    let mut kwargs = Map::new();
    for key in ["enable_thinking", "bos_token", "messages", "add_generation_prompt"] {
        kwargs.insert(key.to_owned(), json!(false));
    }
    let options = ChatOptions { kwargs, ..ChatOptions::default() };
    let source =
        "{{ enable_thinking }}{{ bos_token }}{{ messages[0].content }}{{ add_generation_prompt }}";
    assert_eq!(render_with(source, &hi(), &options).unwrap(), "FalsehiTrue");
}

#[test]
fn without_a_template_it_is_chatml() {
    let vocabulary = Vocabulary::from_gguf(&qwen35_header().gguf()).unwrap();
    let template = Template::new(None, &vocabulary).unwrap();
    let rendered = template.render(&hi(), &ChatOptions::default()).unwrap();
    assert_eq!(rendered, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    let options = ChatOptions { add_generation_prompt: false, ..ChatOptions::default() };
    let rendered = template.render(&hi(), &options).unwrap();
    assert_eq!(rendered, "<|im_start|>user\nhi<|im_end|>\n");
}
