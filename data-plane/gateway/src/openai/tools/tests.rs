use serde_json::{Value, json};

use super::*;
use crate::openai::chat::parse;

fn asked(change: Value) -> Result<ToolsAsked, ParameterError> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    parse(&serde_json::to_vec(&body).unwrap()).map(|request| request.tools)
}

fn function(change: Value) -> Value {
    let mut function = json!({"name": "f"});
    for (name, value) in change.as_object().unwrap() {
        function[name] = value.clone();
    }
    json!([{"type": "function", "function": function}])
}

#[test]
fn tools_arrive_with_their_schemas_as_they_were_written() {
    let schema = json!({"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}});
    let tools = function(json!({"description": "d", "parameters": schema, "strict": true}));
    let asked_for =
        asked(json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false})).unwrap();
    let tool = Tool {
        name: "f".into(),
        description: Some("d".into()),
        parameters: Some(schema.to_string()),
        strict: true,
    };
    assert_eq!(asked_for, ToolsAsked { tools: vec![tool], choice: ToolChoice::Required, parallel: false });
    let plain = asked(json!({"tools": function(json!({"parameters": null, "strict": null}))})).unwrap();
    let tool = Tool { name: "f".into(), ..Tool::default() };
    assert_eq!(plain, ToolsAsked { tools: vec![tool.clone()], choice: ToolChoice::Auto, parallel: true });
    let named = json!({"type": "function", "function": {"name": "f"}});
    let named = asked(json!({"tools": function(json!({})), "tool_choice": named})).unwrap();
    assert_eq!((named.callable(), &named.choice), (&[tool][..], &ToolChoice::Named("f".into())));
    let none = asked(json!({"tools": function(json!({})), "tool_choice": "none"})).unwrap();
    assert_eq!(none, ToolsAsked::default());
}

#[test]
fn bad_tools_are_refused_by_their_path() {
    let check = |change: Value, param: &str, code: &'static str| {
        let error = asked(change.clone()).expect_err(&change.to_string());
        assert_eq!((error.param.as_deref(), error.code), (Some(param), Some(code)), "{change}");
    };
    let tools = |tools: Value, param: &str, code: &'static str| check(json!({"tools": tools}), param, code);
    tools(json!("f"), "tools", "invalid_type");
    tools(json!([1]), "tools[0]", "invalid_type");
    tools(json!([{"function": {"name": "f"}}]), "tools[0].type", "missing_required_parameter");
    tools(json!([{"type": "web_search"}]), "tools[0].type", "invalid_value");
    tools(json!([{"type": "function"}]), "tools[0].function", "missing_required_parameter");
    tools(function(json!({"name": null})), "tools[0].function.name", "missing_required_parameter");
    tools(function(json!({"name": "a b"})), "tools[0].function.name", "invalid_value");
    tools(function(json!({"name": ""})), "tools[0].function.name", "invalid_value");
    tools(function(json!({"name": "f".repeat(65)})), "tools[0].function.name", "string_above_max_length");
    tools(function(json!({"mood": 1})), "tools[0].function.mood", "unknown_parameter");
    tools(
        function(json!({"description": "d".repeat(8193)})),
        "tools[0].function.description",
        "string_above_max_length",
    );
    tools(function(json!({"strict": "yes"})), "tools[0].function.strict", "invalid_type");
    let parameters = "tools[0].function.parameters";
    tools(function(json!({"parameters": []})), parameters, "invalid_type");
    tools(function(json!({"parameters": {"type": "string"}})), parameters, "invalid_function_parameters");
    tools(function(json!({"parameters": {"description": "d".repeat(70_000)}})), parameters, "invalid_value");
    let deep = (0..40).fold(json!({}), |inner, _| json!({ "a": inner }));
    tools(function(json!({ "parameters": deep })), parameters, "invalid_value");
    let many: Vec<Value> = (0..129).map(|_| function(json!({}))[0].clone()).collect();
    tools(json!(many), "tools", "array_above_max_length");
    let large = function(json!({"parameters": {"description": "d".repeat(60_000)}}));
    let large: Vec<Value> = (0..9).map(|_| large[0].clone()).collect();
    tools(json!(large), "tools", "invalid_value");

    let choice = |choice: Value, param: &str, code: &'static str| {
        check(json!({"tools": function(json!({})), "tool_choice": choice}), param, code);
    };
    choice(json!("sometimes"), "tool_choice", "invalid_value");
    choice(json!(1), "tool_choice", "invalid_type");
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}});
    choice(allowed, "tool_choice.type", "invalid_value");
    choice(
        json!({"type": "function", "function": {"name": "f"}, "mood": 1}),
        "tool_choice.mood",
        "unknown_parameter",
    );
    choice(json!({"type": "function"}), "tool_choice.function", "missing_required_parameter");
    choice(json!({"type": "function", "function": {"name": "g"}}), "tool_choice", "invalid_value");
    check(json!({"tool_choice": "required"}), "tool_choice", "invalid_value");
    check(json!({"parallel_tool_calls": 1}), "parallel_tool_calls", "invalid_type");
}

#[test]
fn calls_and_results_arrive_and_belong_together() {
    let messages = |messages: Value| {
        let body = json!({"model": "m", "messages": messages});
        parse(&serde_json::to_vec(&body).unwrap())
    };
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    let user = json!({"role": "user", "content": "hi"});
    let calls = json!({"role": "assistant", "content": null, "tool_calls": [call("c1"), call("c2")],
                       "reasoning_content": "hm"});
    let result =
        |id: &str| json!({"role": "tool", "tool_call_id": id, "content": [{"type": "text", "text": "yes"}]});
    let request = messages(json!([user, calls, result("c2"), result("c1"), user])).unwrap();
    let crate::openai::Input::Chat(read) = request.input else { panic!("no chat") };
    assert_eq!((read[1].content.as_str(), read[1].reasoning_content.as_deref()), ("", Some("hm")));
    assert_eq!(
        (read[1].tool_calls[1].id.as_str(), read[1].tool_calls[1].arguments.as_str()),
        ("c2", "{\"a\": 1}")
    );
    assert_eq!((read[2].role.as_str(), read[2].tool_call_id.as_deref()), ("tool", Some("c2")));
    let check = |bad: Value, param: &str, code: Option<&'static str>| {
        let error = messages(bad.clone()).expect_err(&bad.to_string());
        assert_eq!((error.param.as_deref(), error.code), (Some(param), code), "{bad}");
    };
    check(json!([user, result("c1")]), "messages[1].role", None);
    check(json!([user, calls, result("c1")]), "messages[2].role", None);
    check(json!([user, calls, result("c1"), user]), "messages[2].role", None);
    check(json!([user, calls, result("c1"), result("c2"), result("c3")]), "messages[4].role", None);
    let missing = Some("missing_required_parameter");
    check(json!([{"role": "tool", "content": "x"}]), "messages[0].tool_call_id", missing);
    check(json!([{"role": "assistant", "content": null}]), "messages[0].content", missing);
    check(
        json!([{"role": "user", "content": null, "tool_calls": [call("c")]}]),
        "messages[0].tool_calls",
        Some("unknown_parameter"),
    );
    let of = |call: Value| json!([{"role": "assistant", "tool_calls": [call]}]);
    check(of(json!({"type": "function"})), "messages[0].tool_calls[0].id", missing);
    check(of(json!({"id": "c", "type": "x"})), "messages[0].tool_calls[0].type", Some("invalid_value"));
    let function = json!({"name": "f", "arguments": {"a": 1}});
    check(
        of(json!({"id": "c", "type": "function", "function": function})),
        "messages[0].tool_calls[0].function.arguments",
        Some("invalid_type"),
    );
    for kind in ["image_url", "input_audio", "file"] {
        let error = messages(json!([{"role": "user", "content": [{"type": kind}]}])).unwrap_err();
        assert!(error.message.contains(kind) && error.message.contains("'text'"), "{}", error.message);
    }
}
