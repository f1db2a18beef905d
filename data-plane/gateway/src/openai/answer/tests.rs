use proptest::prelude::*;
use serde_json::{Value, json};
use weir_text::TextModel;

use super::*;
use crate::testing_text::byte_level;

fn writer(endpoint: Endpoint, change: impl FnOnce(&mut Asked)) -> AnswerWriter {
    let mut asked = Asked {
        endpoint,
        model: "m".into(),
        n: 1,
        has_logprobs: false,
        include_usage: false,
        service_tier: None,
    };
    change(&mut asked);
    let text = Arc::new(TextModel::new(byte_level()).unwrap());
    AnswerWriter::new(asked, RequestId::from_u128(5), 7, "sha256:0123456789abcdef", text)
}

fn events(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.ends_with("\n\n"));
    text.trim_end()
        .split("\n\n")
        .map(|event| event.strip_prefix("data: ").unwrap())
        .map(|data| if data == "[DONE]" { json!("done") } else { serde_json::from_str(data).unwrap() })
        .collect()
}

fn content(text: &str) -> Vec<AnswerEvent> {
    vec![AnswerEvent::Content(text.into())]
}

fn choice(text: &str) -> Choice {
    let mut said = Said::default();
    said.add(content(text));
    Choice { said, reason: Some(FinishReason::Stop), ..Choice::default() }
}

/// Of the byte-level tokenizer: a token a byte, after five special ones.
fn logprob(byte: u8, value: f32, other: u8) -> TokenLogprob {
    let id = |byte: u8| u32::from(byte) + 5;
    TokenLogprob {
        token: id(byte),
        logprob: value,
        top_tokens: vec![id(other), id(byte)],
        top_logprobs: vec![-0.25, value],
    }
}

#[test]
fn chat_chunks_are_openais() {
    let mut writer = writer(Endpoint::Chat, |asked| asked.include_usage = true);
    assert_eq!(
        events(&writer.opening()),
        [json!({
            "id": "chatcmpl-00000000000000000000000005", "object": "chat.completion.chunk", "created": 7,
            "model": "m", "system_fingerprint": "fp_0123456789", "usage": null,
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
                         "finish_reason": null}],
        })]
    );
    let text = &events(&writer.piece(0, content("a\n\"b\u{2028}"), &[]))[0];
    assert_eq!(text["choices"][0]["delta"], json!({"content": "a\n\"b\u{2028}"}));
    let finished = &events(&writer.finished(0, FinishReason::Length))[0];
    assert_eq!(finished["choices"][0]["delta"], json!({}));
    assert_eq!(finished["choices"][0]["finish_reason"], "length");
    let end = events(&writer.end(Usage::new(40, 32, 4, 0)));
    assert_eq!(end.len(), 2);
    assert_eq!(end[0]["choices"], json!([]));
    assert_eq!(
        end[0]["usage"],
        json!({"prompt_tokens": 40, "completion_tokens": 4, "total_tokens": 44,
               "prompt_tokens_details": {"cached_tokens": 32},
               "completion_tokens_details": {"reasoning_tokens": 0}})
    );
    assert_eq!(end[1], "done");
}

#[test]
fn usage_is_absent_unless_asked_for() {
    let mut writer = writer(Endpoint::Completion, |_| ());
    assert!(writer.opening().is_empty());
    assert!(events(&writer.piece(0, content("x"), &[]))[0].get("usage").is_none());
    assert_eq!(
        events(&writer.finished(0, FinishReason::Stop))[0]["choices"],
        json!([{"text": "", "index": 0, "logprobs": null, "finish_reason": "stop"}])
    );
    assert_eq!(events(&writer.end(Usage::new(1, 0, 1, 0))), ["done"]);
}

#[test]
fn whole_answers_are_openais() {
    let usage = Usage::new(3, 0, 2, 0);
    let body = writer(Endpoint::Chat, |_| ()).whole(&[choice("hi")], usage);
    let chat: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(chat["object"], "chat.completion");
    assert_eq!(
        chat["choices"],
        json!([{"index": 0, "message": {"role": "assistant", "content": "hi", "refusal": null},
                "logprobs": null, "finish_reason": "stop"}])
    );
    assert_eq!(chat["usage"]["total_tokens"], 5);
    let body = writer(Endpoint::Completion, |_| ()).whole(&[choice("hi")], usage);
    let text: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (text["object"].as_str(), text["id"].as_str()),
        (Some("text_completion"), Some("cmpl-00000000000000000000000005"))
    );
    assert_eq!(text["choices"][0]["text"], "hi");
}

#[test]
fn choices_are_told_apart_by_their_index() {
    let mut writer = writer(Endpoint::Chat, |asked| asked.n = 2);
    let opening = events(&writer.opening());
    assert_eq!(
        [&opening[0]["choices"][0]["index"], &opening[1]["choices"][0]["index"]],
        [&json!(0), &json!(1)]
    );
    assert_eq!(events(&writer.piece(1, content("x"), &[]))[0]["choices"][0]["index"], 1);
    let body = writer.whole(&[choice("a"), choice("b")], Usage::new(1, 0, 2, 0));
    let whole: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(whole["choices"][1]["message"]["content"], "b");
    assert_eq!(whole["choices"][1]["index"], 1);
}

#[test]
fn log_probabilities_are_told_in_each_endpoints_shape() {
    let tokens = [logprob(b'h', -0.5, b'H'), logprob(0xc3, f32::NEG_INFINITY, b'a')];
    // The end of a turn shows nothing.
    let end = TokenLogprob { token: 4, logprob: -0.1, ..TokenLogprob::default() };
    let mut chat = writer(Endpoint::Chat, |asked| asked.has_logprobs = true);
    let chunk = &events(&chat.piece(0, content("h"), &[tokens[0].clone(), tokens[1].clone(), end]))[0];
    let named =
        |token: &str, logprob: f64, bytes: &[u8]| json!({"token": token, "logprob": logprob, "bytes": bytes});
    let mut first = named("h", -0.5, b"h");
    first["top_logprobs"] = json!([named("H", -0.25, b"H"), named("h", -0.5, b"h")]);
    let mut second = named("\u{fffd}", -9999.0, &[0xc3]);
    second["top_logprobs"] = json!([named("a", -0.25, b"a"), named("\u{fffd}", -9999.0, &[0xc3])]);
    assert_eq!(chunk["choices"][0]["logprobs"], json!({"content": [first, second], "refusal": null}));

    let mut completion = writer(Endpoint::Completion, |asked| asked.has_logprobs = true);
    completion.piece(0, content("x"), &[logprob(b'x', -1.0, b'y')]);
    let chunk = &events(&completion.piece(0, content("h"), &tokens[..1]))[0];
    assert_eq!(
        chunk["choices"][0]["logprobs"],
        json!({"tokens": ["h"], "token_logprobs": [-0.5], "top_logprobs": [{"H": -0.25, "h": -0.5}],
               "text_offset": [1]})
    );
}

#[test]
fn calls_and_thoughts_are_openais() {
    let call = |index| AnswerEvent::ToolCallBegin { index, name: "f".into() };
    let arguments = |index, piece: &str| AnswerEvent::Arguments { index, piece: piece.into() };
    let said = || {
        vec![
            AnswerEvent::Reasoning("hm".into()),
            call(0),
            arguments(0, "{\"a\""),
            arguments(0, ": 1}"),
            AnswerEvent::ToolCallEnd { index: 0 },
            call(1),
            arguments(1, "{}"),
        ]
    };
    let mut writer = writer(Endpoint::Chat, |_| {});
    let chunks = events(&writer.piece(0, said(), &[]));
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let id = |call: usize| format!("call_00000000000000000000000005_0_{call}");
    let function = |name: &str| json!({"name": name, "arguments": ""});
    assert_eq!(
        deltas,
        [
            &json!({"reasoning_content": "hm"}),
            &json!({"tool_calls": [{"index": 0, "id": id(0), "type": "function", "function": function("f")}]}),
            &json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"a\""}}]}),
            &json!({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
            &json!({"tool_calls": [{"index": 1, "id": id(1), "type": "function", "function": function("f")}]}),
            &json!({"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}),
        ]
    );
    assert!(writer.piece(0, vec![AnswerEvent::ToolCallEnd { index: 1 }], &[]).is_empty());
    let finished = &events(&writer.finished(0, FinishReason::ToolCalls))[0];
    assert_eq!(finished["choices"][0]["finish_reason"], "tool_calls");
    let mut whole = choice("");
    whole.said.add(said());
    let body: Value = serde_json::from_slice(&writer.whole(&[whole], Usage::new(1, 0, 5, 2))).unwrap();
    assert_eq!(body["usage"]["completion_tokens_details"], json!({"reasoning_tokens": 2}));
    let function = |arguments: &str| json!({"name": "f", "arguments": arguments});
    assert_eq!(
        body["choices"][0]["message"],
        json!({"role": "assistant", "content": null, "reasoning_content": "hm", "refusal": null, "tool_calls": [
            {"id": id(0), "type": "function", "function": function("{\"a\": 1}")},
            {"id": id(1), "type": "function", "function": function("{}")},
        ]})
    );
}

/// What a generation may say next, of one of three choices.
#[derive(Debug, Clone)]
enum Told {
    Said(usize, Vec<AnswerEvent>, Vec<TokenLogprob>),
    Finished(usize, FinishReason),
}

fn any_event() -> impl Strategy<Value = AnswerEvent> {
    let text = || any::<String>();
    prop_oneof![
        4 => text().prop_map(AnswerEvent::Content),
        1 => text().prop_map(AnswerEvent::Reasoning),
        1 => (0..3u32, text()).prop_map(|(index, name)| AnswerEvent::ToolCallBegin { index, name }),
        1 => (0..3u32, text()).prop_map(|(index, piece)| AnswerEvent::Arguments { index, piece }),
        1 => (0..3u32).prop_map(|index| AnswerEvent::ToolCallEnd { index }),
    ]
}

fn any_logprob() -> impl Strategy<Value = TokenLogprob> {
    let top = prop::collection::vec((0..300u32, any::<f32>()), 0..3);
    (0..300u32, any::<f32>(), top).prop_map(|(token, logprob, top)| {
        let (top_tokens, top_logprobs) = top.into_iter().unzip();
        TokenLogprob { token, logprob, top_tokens, top_logprobs }
    })
}

fn any_told() -> impl Strategy<Value = Told> {
    let reason =
        prop::sample::select(vec![FinishReason::Stop, FinishReason::Length, FinishReason::ToolCalls]);
    let said =
        (0..3usize, prop::collection::vec(any_event(), 0..4), prop::collection::vec(any_logprob(), 0..3));
    prop_oneof![
        5 => said.prop_map(|(choice, said, logprobs)| Told::Said(choice, said, logprobs)),
        1 => (0..3usize, reason).prop_map(|(choice, reason)| Told::Finished(choice, reason)),
    ]
}

/// By choice: content, reasoning, and the arguments of each call number.
type Texts = [(String, String, [String; 3]); 3];

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// What a client puts together from the events.
fn put_together(events: &[Value]) -> Texts {
    let mut texts = Texts::default();
    for choice in events.iter().filter_map(|event| event["choices"].as_array()).flatten() {
        let (content, reasoning, arguments) = &mut texts[number(&choice["index"])];
        let delta = &choice["delta"];
        content.push_str(delta["content"].as_str().or(choice["text"].as_str()).unwrap_or_default());
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let piece = call["function"]["arguments"].as_str().unwrap();
            arguments[number(&call["index"])].push_str(piece);
        }
    }
    texts
}

fn put_in(told: &[Told], endpoint: Endpoint) -> Texts {
    let mut texts = Texts::default();
    for told in told {
        let Told::Said(choice, said, _) = told else { continue };
        let (content, reasoning, arguments) = &mut texts[*choice];
        for event in said {
            match event {
                AnswerEvent::Content(text) => content.push_str(text),
                // Completions have content only.
                _ if endpoint == Endpoint::Completion => {}
                AnswerEvent::Reasoning(text) => reasoning.push_str(text),
                AnswerEvent::Arguments { index, piece } => arguments[*index as usize].push_str(piece),
                AnswerEvent::ToolCallBegin { .. } | AnswerEvent::ToolCallEnd { .. } => {}
            }
        }
    }
    texts
}

proptest! {
    #[test]
    fn whatever_is_told_in_whatever_order_is_read_again_event_by_event(
        told in prop::collection::vec(any_told(), 0..24),
        is_chat: bool,
        has_logprobs: bool,
        include_usage: bool,
    ) {
        let endpoint = if is_chat { Endpoint::Chat } else { Endpoint::Completion };
        let mut writer = writer(endpoint, |asked| {
            *asked = Asked { n: 3, has_logprobs, include_usage, ..asked.clone() };
        });
        let mut stream = writer.opening();
        for told in told.clone() {
            let chunk = match told {
                Told::Said(choice, said, logprobs) => writer.piece(choice, said, &logprobs),
                Told::Finished(choice, reason) => writer.finished(choice, reason),
            };
            stream.extend_from_slice(&chunk);
        }
        stream.extend_from_slice(&writer.end(Usage::new(1, 0, 2, 0)));
        let events = events(&stream);
        prop_assert_eq!(events.last(), Some(&json!("done")));
        prop_assert_eq!(put_together(&events), put_in(&told, endpoint));
        let finishes = events
            .iter()
            .filter(|event| !event["choices"][0]["finish_reason"].is_null())
            .count();
        prop_assert_eq!(finishes, told.iter().filter(|told| matches!(told, Told::Finished(..))).count());
    }
}
