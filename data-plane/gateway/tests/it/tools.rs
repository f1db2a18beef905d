//! Calls of tools and thoughts, from the request to the answer, its usage and its charge.

use serde_json::{Value, json};
use weir_schemas::records::FinishReason as RecordedReason;
use weir_schemas::rpc::worker::FinishReason;
use weir_schemas::rpc::worker::grammar::Kind;

use crate::support::worker::Script;
use crate::support::{Harness, TEMPLATE, prompt_tokens};

/// An answer that says something and calls twice, a token a piece.
const CALLS: [&str; 8] = [
    "Let me see.",
    "\n<tool_",
    "call>\n{\"name\": \"weather\", ",
    "\"arguments\": {\"city\": \"서",
    "울\"}}",
    "\n</tool_call>\n<tool_call>{\"name\": \"weather\", \"arguments\": ",
    "{}}</tool",
    "_call>",
];

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"type": "function", "function": {"name": "weather", "description": "Tells it", "parameters": parameters}}])
}

fn chunks(events: &[String]) -> Vec<Value> {
    let choice =
        |event: &String| serde_json::from_str::<Value>(event).ok().map(|chunk| chunk["choices"][0].clone());
    events.iter().filter_map(choice).filter(|choice| !choice.is_null()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_answered_whole_and_streamed_alike() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::answer(&CALLS));
    let answer = harness.client.chat(&harness.token, json!({"tools": tools()})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let choice = answer.json()["choices"][0].clone();
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &json!("Let me see.\n"))
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap().clone();
    let functions: Vec<_> = calls.iter().map(|call| call["function"].clone()).collect();
    let weather = |arguments: &str| json!({"name": "weather", "arguments": arguments});
    assert_eq!(functions, [weather("{\"city\": \"서울\"}"), weather("{}")]);
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_") && calls[0]["id"] != calls[1]["id"]);

    let events = harness.client.chat_stream(&harness.token, json!({"tools": tools()})).await.events().await;
    let chunks = chunks(&events);
    assert_eq!(chunks.last().unwrap()["finish_reason"], "tool_calls");
    let content: String = chunks.iter().filter_map(|chunk| chunk["delta"]["content"].as_str()).collect();
    assert_eq!(content, "Let me see.\n");
    let mut streamed: Vec<(Value, String)> = Vec::new();
    for delta in chunks.iter().filter_map(|chunk| chunk["delta"]["tool_calls"].as_array()) {
        let [call] = delta.as_slice() else { panic!("{delta:?}") };
        if call.get("id").is_some() {
            assert_eq!((&call["type"], &call["function"]["arguments"]), (&json!("function"), &json!("")));
            assert_eq!(call["index"], streamed.len());
            streamed.push((call["function"]["name"].clone(), String::new()));
        } else {
            assert_eq!(
                (call["index"].as_u64(), call["function"].get("name")),
                (Some(streamed.len() as u64 - 1), None)
            );
            streamed.last_mut().unwrap().1 += call["function"]["arguments"].as_str().unwrap();
        }
    }
    assert_eq!(
        streamed,
        [(json!("weather"), "{\"city\": \"서울\"}".to_owned()), (json!("weather"), "{}".to_owned())]
    );

    let charges = harness.ledger.wait_charges(2).await;
    assert!(charges.iter().all(|charge| charge.data.finish_reason == RecordedReason::ToolCalls));
    assert_eq!(charges[0].data.generated_tokens, 8);
    // The template has no tools, so they are a system message.
    let sent = harness.workers[0].requests().remove(0);
    assert!(sent.prompt.len() as u64 > prompt_tokens("hello") + 200, "{}", sent.prompt.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_length_cut_says_so() {
    let harness = Harness::new(1).await;
    let texts = CALLS[1..4].to_vec();
    harness.workers[0].script(Script::Answer { texts, reason: FinishReason::Length, cached: 0 });
    let answer = harness.client.chat(&harness.token, json!({"tools": tools(), "max_tokens": 3})).await.json();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("length"), &json!(null)));
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"서");
    assert_eq!(harness.ledger.wait_charges(1).await[0].data.finish_reason, RecordedReason::Length);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tools_or_with_none_allowed_nothing_is_a_call() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::answer(&CALLS));
    for change in [json!({}), json!({"tools": tools(), "tool_choice": "none"})] {
        let answer = harness.client.chat(&harness.token, change).await.json();
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("stop"), &json!(CALLS.concat()))
        );
        assert!(choice["message"].get("tool_calls").is_none());
    }
    let sent = harness.workers[0].requests();
    assert!(sent.iter().all(|sent| sent.prompt.len() as u64 == prompt_tokens("hello")));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_at_most_where_the_request_says_so() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::answer(&CALLS));
    let one = json!({"tools": tools(), "parallel_tool_calls": false});
    let answer = harness.client.chat(&harness.token, one).await.json();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_results_are_part_of_the_prompt() {
    let harness = Harness::new(1).await;
    let call =
        json!({"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}});
    let messages = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]);
    let answer = harness.client.chat(&harness.token, json!({ "messages": messages })).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let turn = |role: &str, content: &str| 2 + role.len() + 1 + content.len();
    let tokens = turn("user", "hello")
        + turn("assistant", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>")
        + turn("user", "<tool_response>\nrain\n</tool_response>");
    assert_eq!(harness.workers[0].requests()[0].prompt.len(), tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn thoughts_are_apart_and_counted() {
    let template =
        format!("{TEMPLATE}{{% if add_generation_prompt %}}<think>\n{{% endif %}}{{# </think> #}}");
    let harness = Harness::with_template(&template, 1, |_| (), |_| ()).await;
    harness.workers[0].script(Script::answer(&["why", " not", "\n</think>", "\n\n", "Yes."]));
    let answer = harness.client.chat(&harness.token, json!({})).await.json();
    assert_eq!(
        answer["choices"][0]["message"],
        json!({"role": "assistant", "content": "Yes.", "reasoning_content": "why not", "refusal": null})
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens_details"], json!({"reasoning_tokens": 3}));
    assert_eq!(answer["usage"]["completion_tokens"], 5);

    let events = harness.client.chat_stream(&harness.token, json!({})).await.events().await;
    let deltas: Vec<Value> = chunks(&events).iter().map(|chunk| chunk["delta"].clone()).collect();
    let of = |field: &str| deltas.iter().filter_map(|delta| delta[field].as_str()).collect::<String>();
    assert_eq!((of("reasoning_content"), of("content")), ("why not".to_owned(), "Yes.".to_owned()));
    for charge in harness.ledger.wait_charges(2).await {
        assert_eq!((charge.data.reasoning_tokens, charge.data.generated_tokens), (3, 5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_asked_for_reach_the_worker_as_a_grammar_and_its_refusal_the_client() {
    let harness = Harness::new(1).await;
    let strict = |strict: bool| {
        let mut tools = tools();
        tools[0]["function"]["strict"] = json!(strict);
        tools
    };
    let named = json!({"type": "function", "function": {"name": "weather"}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}});
    for change in [
        json!({"tools": tools()}),
        json!({"tools": tools(), "tool_choice": "required"}),
        json!({"tools": tools(), "tool_choice": named}),
        json!({"tools": strict(true)}),
        json!({"tools": tools(), "response_format": format}),
    ] {
        assert_eq!(harness.client.chat(&harness.token, change).await.status, 200);
    }
    let grammars =
        harness.workers[0].requests().into_iter().map(|sent| sent.grammar.and_then(|grammar| grammar.kind));
    let second_rule = |kind: Option<Kind>| match kind {
        Some(Kind::Lark(lark)) => lark.lines().nth(1).map(str::to_owned),
        None => None,
        Some(other) => panic!("{other:?}"),
    };
    let rules: Vec<_> = grammars.map(second_rule).collect();
    let rules: Vec<_> = rules.iter().map(Option::as_deref).collect();
    assert_eq!(
        rules,
        [
            None,
            Some("answer: framed (\"\\n\" framed)*"),
            Some("answer: framed"),
            Some("until_call[lazy]: SAID \"<tool_call>\""),
            Some("answer: calls | said"),
        ]
    );
    harness.workers[0].script(Script::Refuse(FinishReason::RefusedInvalid));
    let refused = harness.client.chat(&harness.token, json!({"tools": strict(true)})).await;
    assert_eq!((refused.error().0, refused.error().3.as_deref()), (400, Some("tools")));
}
