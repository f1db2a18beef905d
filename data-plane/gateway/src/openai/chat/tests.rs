use proptest::prelude::*;
use serde_json::{Value, json};
use weir_schemas::records::Tier;
use weir_text::ChatMessage;

use super::*;
use crate::openai::{ResponseFormat, SamplingOptions, ToolsAsked, completion};

fn body(change: Value) -> Vec<u8> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    serde_json::to_vec(&body).unwrap()
}

fn error(change: Value) -> (Option<String>, Option<&'static str>) {
    let error = parse(&body(change.clone())).expect_err(&change.to_string());
    if let Some(param) = &error.param {
        assert!(error.message.contains(param.as_str()), "{} does not name {param}", error.message);
    }
    (error.param, error.code)
}

#[test]
fn every_parameter_arrives() {
    let request = parse(&body(json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": -1, "stop": ["a", "b"], "stream": true,
        "stream_options": {"include_usage": true}, "user": "u", "metadata": {"request_id": "r-1", "x": "y"},
        "max_completion_tokens": 7, "service_tier": "batch", "n": 4, "logprobs": true, "top_logprobs": 3,
        "presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.5,
        "logit_bias": {"5": 100, "17": -2.5},
        "response_format": {"type": "json_schema", "budget_aware_ending": false,
                            "json_schema": {"name": "n", "strict": true, "schema": {"type": "integer"}}},
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
            {"role": "user", "content": "hi", "name": "ann"},
            {"role": "assistant", "content": "yo", "refusal": null, "tool_calls": null, "annotations": []},
        ],
    })))
    .unwrap();
    let message = |role: &str, content: &str, name: Option<&str>| ChatMessage {
        name: name.map(Into::into),
        ..ChatMessage::new(role, content)
    };
    assert_eq!(
        request,
        CompletionRequest {
            model: "m".into(),
            input: Input::Chat(vec![
                message("system", "be brief", None),
                message("user", "hi", Some("ann")),
                message("assistant", "yo", None),
            ]),
            tools: ToolsAsked { parallel: true, ..ToolsAsked::default() },
            max_tokens: Some(7),
            sampling: SamplingOptions {
                temperature: 0.5,
                top_p: 0.9,
                top_k: 40,
                min_p: 0.1,
                seed: Some(u64::MAX),
                presence_penalty: 0.5,
                frequency_penalty: -1.0,
                repetition_penalty: 1.5,
            },
            logit_bias: vec![(17, -2.5), (5, 100.0)],
            logprobs: Some(3),
            n: 4,
            response_format: ResponseFormat::JsonSchema {
                schema: r#"{"type":"integer"}"#.into(),
                budget_aware: false,
            },
            stop: vec!["a".into(), "b".into()],
            stream: true,
            include_usage: true,
            tier: Tier::Batch,
            names_tier: true,
            client_request_id: Some("r-1".into()),
        }
    );
}

#[test]
fn neutral_values_of_what_is_not_built_are_accepted() {
    let neutral = json!({
        "n": 1, "logprobs": false, "top_logprobs": 0, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {},
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"],
        "audio": null, "stop": null, "temperature": null, "max_tokens": null, "parallel_tool_calls": true,
        "service_tier": "auto", "reasoning_effort": null,
    });
    assert!(parse(&body(neutral)).is_ok());
}

#[test]
fn what_needs_nothing_to_be_done_is_checked_and_accepted() {
    for accepted in [
        json!({"store": true, "safety_identifier": "someone", "prompt_cache_key": "talk", "user": "someone"}),
        json!({"store": false, "service_tier": "priority"}),
    ] {
        assert!(parse(&body(accepted.clone())).is_ok(), "{accepted}");
    }
    assert_eq!(error(json!({"store": "yes"})), (Some("store".to_owned()), Some("invalid_type")));
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    for (name, value) in [
        ("modalities", json!(["text", "audio"])),
        ("audio", json!({"voice": "x"})),
        ("reasoning_effort", json!("low")),
        ("functions", json!([{}])),
        ("web_search_options", json!({})),
        ("prediction", json!({})),
    ] {
        assert_eq!(error(json!({name: value})), (Some(name.to_owned()), Some("unsupported_parameter")));
    }
}

#[test]
fn unknown_and_wrong_parameters_are_refused_by_name() {
    let check = |change: Value, param: &str, code: &'static str| {
        assert_eq!(error(change), (Some(param.to_owned()), Some(code)));
    };
    check(json!({"temprature": 1}), "temprature", "unknown_parameter");
    check(json!({"temperature": 2.1}), "temperature", "decimal_above_max_value");
    check(json!({"top_p": -0.1}), "top_p", "decimal_below_min_value");
    check(json!({"max_tokens": 0}), "max_tokens", "integer_below_min_value");
    check(json!({"max_tokens": -5}), "max_tokens", "integer_below_min_value");
    check(json!({"max_tokens": 1.5}), "max_tokens", "invalid_type");
    check(json!({"max_tokens": 1, "max_completion_tokens": 1}), "max_tokens", "invalid_value");
    check(json!({"stop": ["a", "b", "c", "d", "e"]}), "stop", "array_above_max_length");
    check(json!({"stop": [""]}), "stop", "invalid_value");
    check(json!({"stop": 3}), "stop", "invalid_type");
    check(json!({"n": 0}), "n", "integer_below_min_value");
    check(json!({"n": 129}), "n", "integer_above_max_value");
    check(json!({"presence_penalty": 2.5}), "presence_penalty", "decimal_above_max_value");
    check(json!({"frequency_penalty": "x"}), "frequency_penalty", "invalid_type");
    check(json!({"logit_bias": {"5": 101}}), "logit_bias", "decimal_above_max_value");
    check(json!({"logit_bias": {"five": 1}}), "logit_bias", "invalid_value");
    check(json!({"logit_bias": [1]}), "logit_bias", "invalid_type");
    check(json!({"logprobs": 3}), "logprobs", "invalid_type");
    check(json!({"top_logprobs": 3}), "top_logprobs", "invalid_value");
    check(json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs", "integer_above_max_value");
    check(json!({"stream": "yes"}), "stream", "invalid_type");
    check(json!({"stream_options": {"include_usage": true}}), "stream_options", "invalid_value");
    check(json!({"stream": true, "stream_options": {"x": 1}}), "stream_options.x", "unknown_parameter");
    let obfuscated = json!({"stream": true, "stream_options": {"include_obfuscation": true}});
    check(obfuscated, "stream_options.include_obfuscation", "unsupported_parameter");
    check(json!({"metadata": {"a": 1}}), "metadata", "invalid_type");
    check(json!({"priority": "urgent"}), "priority", "invalid_value");
    check(json!({"priority": "batch", "service_tier": "default"}), "priority", "invalid_value");
    check(json!({"seed": 1e30}), "seed", "invalid_type");
    check(json!({"model": ""}), "model", "missing_required_parameter");
    check(json!({"model": 5}), "model", "invalid_type");
    check(json!({"user": "u".repeat(513)}), "user", "string_above_max_length");
}

#[test]
fn an_answer_can_be_asked_for_in_four_forms() {
    let format = |format: Value| parse(&body(json!({"response_format": format}))).map(|r| r.response_format);
    assert_eq!(format(json!({"type": "text"})), Ok(ResponseFormat::Text));
    let schema = |schema: Value| json!({"type": "json_schema", "json_schema": schema});
    let any = ResponseFormat::JsonSchema { schema: r#"{"type":"object"}"#.into(), budget_aware: true };
    assert_eq!(format(schema(json!({"name": "x", "strict": null, "description": "y"}))), Ok(any));
    let grammar = ResponseFormat::Grammar("start: \"a\"".into());
    assert_eq!(format(json!({"type": "grammar", "grammar": "start: \"a\""})), Ok(grammar));
    let told = json!({"response_format": {"type": "json_object"}, "messages": [{"role": "user", "content": "As Json"}]});
    assert_eq!(parse(&body(told)).unwrap().response_format, ResponseFormat::JsonObject);
    for (bad, param) in [
        (json!({"type": "json_object"}), "messages"),
        (json!({"type": "xml"}), "response_format.type"),
        (json!({}), "response_format.type"),
        (json!("text"), "response_format"),
        (json!({"type": "json_schema"}), "response_format.json_schema"),
        (json!({"type": "grammar"}), "response_format.grammar"),
        (json!({"type": "grammar", "grammar": "x".repeat(200_000)}), "response_format.grammar"),
        (schema(json!({"schema": {}})), "response_format.json_schema.name"),
        (schema(json!({"name": "a b"})), "response_format.json_schema.name"),
        (schema(json!({"name": "x", "schema": 5})), "response_format.json_schema.schema"),
        (schema(json!({"name": "x", "strict": "y"})), "response_format.json_schema.strict"),
        (schema(json!({"name": "x", "mood": 1})), "response_format.json_schema.mood"),
        (json!({"type": "text", "mood": 1}), "response_format.mood"),
    ] {
        assert_eq!(format(bad).unwrap_err().param.as_deref(), Some(param));
    }
}

#[test]
fn bad_messages_are_refused_by_their_path() {
    let check = |messages: Value, param: &str, code: &'static str| {
        assert_eq!(error(json!({"messages": messages})), (Some(param.to_owned()), Some(code)));
    };
    check(json!([]), "messages", "empty_array");
    check(json!("hi"), "messages", "invalid_type");
    check(json!(["hi"]), "messages[0]", "invalid_type");
    check(json!([{"content": "x"}]), "messages[0].role", "missing_required_parameter");
    check(json!([{"role": "wizard", "content": "x"}]), "messages[0].role", "invalid_value");
    check(json!([{"role": "function", "content": "x"}]), "messages[0].role", "unsupported_parameter");
    check(json!([{"role": "user"}]), "messages[0].content", "missing_required_parameter");
    check(json!([{"role": "user", "content": 4}]), "messages[0].content", "invalid_type");
    check(json!([{"role": "user", "content": "x", "mood": 1}]), "messages[0].mood", "unknown_parameter");
    let part = json!([{"type": "text", "text": "x", "mood": 1}]);
    check(json!([{"role": "user", "content": part}]), "messages[0].content[0].mood", "unknown_parameter");
    check(json!([{"role": "assistant", "refusal": "no"}]), "messages[0].refusal", "unsupported_parameter");
    let image = json!([{"type": "image_url", "image_url": {"url": "data:"}}]);
    check(json!([{"role": "user", "content": image}]), "messages[0].content[0].type", "invalid_value");
    let many: Vec<Value> = (0..100_000).map(|_| json!({"role": "user", "content": "x"})).collect();
    check(json!(many), "messages", "array_above_max_length");
}

#[test]
fn bodies_that_are_no_object_are_refused() {
    for bad in [&b""[..], b"{", b"[]", b"nul", b"\"x\"", b"{\"model\":\"m\",\"model\":\"n\"}", b"{} {}"] {
        let error = parse(bad).unwrap_err();
        assert_eq!((error.param, error.code), (None, None));
    }
    assert!(parse(b"{\"model\": \"\xff\"}").unwrap_err().message.contains("UTF-8"));
    let deep = format!("{{\"model\": \"m\", \"messages\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse(deep.as_bytes()).is_err());
    let names: Vec<String> = (0..100_000).map(|at| format!("\"p{at}\":1")).collect();
    assert!(parse(format!("{{{}}}", names.join(",")).as_bytes()).is_err());
}

#[test]
fn a_completion_takes_one_prompt_in_four_forms() {
    let input = |prompt: Value| {
        let body = json!({"model": "m", "prompt": prompt});
        completion::parse(&serde_json::to_vec(&body).unwrap())
    };
    assert_eq!(input(json!("x")).unwrap().input, Input::Text("x".into()));
    assert_eq!(input(json!("x")).unwrap().max_tokens, Some(16));
    assert_eq!(input(json!(["x"])).unwrap().input, Input::Text("x".into()));
    assert_eq!(input(json!([1, 2])).unwrap().input, Input::Tokens(vec![1, 2]));
    assert_eq!(input(json!([[1, 2]])).unwrap().input, Input::Tokens(vec![1, 2]));
    for bad in [
        json!([]),
        json!(["x", "y"]),
        json!([[1], [2]]),
        json!([1, -2]),
        json!([1, "x"]),
        json!({}),
        json!(null),
    ] {
        assert_eq!(input(bad).unwrap_err().param.as_deref(), Some("prompt"));
    }
    let with = |name: &str, value: Value| {
        let mut body = json!({"model": "m", "prompt": "x"});
        body[name] = value;
        completion::parse(&serde_json::to_vec(&body).unwrap())
    };
    for (name, value) in
        [("best_of", json!(2)), ("echo", json!(true)), ("suffix", json!("z")), ("logprobs", json!(6))]
    {
        assert_eq!(with(name, value).unwrap_err().param.as_deref(), Some(name));
    }
}

proptest! {
    /// Bodies near valid ones: any byte changed, cut out or doubled. Parsed or refused, never a panic.
    #[test]
    fn damaged_bodies_never_panic(at in any::<usize>(), byte in any::<u8>(), cut in 0usize..8, which in 0usize..2) {
        let whole = body(json!({
            "stop": ["a"], "stream": true, "stream_options": {"include_usage": true}, "metadata": {"a": "b"},
            "messages": [{"role": "user", "content": [{"type": "text", "text": "\u{e9}\\"}], "name": "n"}],
        }));
        let mut damaged = if which == 0 { whole } else { br#"{"model": "m", "prompt": [[1, 2, 3]]}"#.to_vec() };
        let at = at % damaged.len();
        damaged[at] = byte;
        let end = (at + cut).min(damaged.len());
        damaged.drain(at..end);
        drop(parse(&damaged));
        drop(completion::parse(&damaged));
    }
}
