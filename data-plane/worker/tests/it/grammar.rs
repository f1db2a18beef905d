//! Answers that have to keep to a grammar.

use serde_json::{Value, json};
use weir_schemas::rpc::worker::grammar::Kind;
use weir_schemas::rpc::worker::{FinishReason, Generate, Grammar, Sampling};
use weir_text::{ChatMessage, TextModel};

use crate::support::{TestWorker, fetch_text, generate};

fn constrained(number: u128, text: &TextModel, kind: Kind, max_tokens: u32, budget_aware: bool) -> Generate {
    let content = "Tell me about a person, as JSON.";
    let message = ChatMessage::new("user", content);
    let prompt = text.encode_rendered(&text.render_chat(&[message], true).unwrap()).unwrap();
    Generate {
        grammar: Some(Grammar { kind: Some(kind), budget_aware }),
        ..generate(number, prompt, max_tokens)
    }
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "minLength": 1 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "likes": { "type": "array", "items": { "enum": ["tea", "rain", "Zürich"] }, "minItems": 2 },
        },
        "required": ["name", "age", "likes"],
        "additionalProperties": false,
    })
}

fn assert_is_a_person(answer: &str) {
    let value: Value = serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
    let validator = jsonschema::validator_for(&person()).unwrap();
    assert!(validator.is_valid(&value), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_keep_to_their_schema_and_end_validly_within_their_budget() {
    let worker = TestWorker::ready().await;
    let text = fetch_text(&mut worker.client().await).await;
    let mut session = worker.session().await;
    let schema = || Kind::JsonSchema(person().to_string());
    // Whatever the temperature, and beside others that are not constrained.
    let hot = Sampling { temperature: 1.5, top_p: 1.0, seed: 7, ..Sampling::default() };
    let plain = session.send(generate(1, text.encode("One, two,").unwrap(), 40)).await;
    let mut handles = Vec::new();
    for (number, max_tokens) in (0..).zip([200, 60, 40, 34]) {
        let cold = constrained(10 + number, &text, schema(), max_tokens, true);
        let warm = Generate {
            sampling: Some(hot.clone()),
            ..constrained(20 + number, &text, schema(), max_tokens, true)
        };
        handles.push(session.send(cold).await);
        handles.push(session.send(warm).await);
    }
    for handle in handles {
        let (answer, finished) = session.finish(handle).await;
        assert_eq!(finished.reason(), FinishReason::Stop, "{}", answer.text);
        assert_is_a_person(&answer.text);
    }
    assert_eq!(session.finish(plain).await.1.generated_tokens, 40);

    // Without a budget the length cuts it.
    let (cut, finished) = session.complete(constrained(30, &text, schema(), 10, false)).await;
    assert_eq!((finished.reason(), finished.generated_tokens), (FinishReason::Length, 10));
    assert!(serde_json::from_str::<Value>(&cut.text).is_err(), "{}", cut.text);

    let (object, finished) = session.complete(constrained(31, &text, Kind::JsonObject(true), 50, true)).await;
    assert_eq!(finished.reason(), FinishReason::Stop);
    assert!(serde_json::from_str::<Value>(&object.text).unwrap().is_object(), "{}", object.text);

    // The grammar says the last word: no token that ends the answer is needed.
    let lark = Kind::Lark(r#"start: "The answer is " ("yes" | "no") ".""#.to_owned());
    let (said, finished) = session.complete(constrained(32, &text, lark, 50, true)).await;
    assert_eq!(finished.reason(), FinishReason::Stop);
    assert!(matches!(said.text.as_str(), "The answer is yes." | "The answer is no."), "{}", said.text);
    worker.wait_until_idle().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grammar_that_cannot_be_followed_is_refused_by_what_it_asks_for() {
    let worker = TestWorker::ready().await;
    let text = fetch_text(&mut worker.client().await).await;
    let mut session = worker.session().await;
    let nested = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let cases = [
        (Kind::JsonSchema(r#"{"type": "array", "uniqueItems": true}"#.into()), "`uniqueItems`"),
        (Kind::JsonSchema(r#"{"type": "string", "format": "color"}"#.into()), "color"),
        (Kind::JsonSchema("{".into()), "not JSON"),
        (Kind::JsonSchema(nested), "depth"),
        (Kind::Lark("start: other".into()), "other"),
        (Kind::JsonObject(false), "kind"),
    ];
    for (number, (kind, named)) in (0..).zip(cases) {
        let (_, finished) = session.complete(constrained(number, &text, kind, 20, true)).await;
        assert_eq!(finished.reason(), FinishReason::RefusedInvalid);
        assert!(finished.message.contains(named), "{}", finished.message);
        assert_eq!(finished.generated_tokens, 0);
    }
    worker.wait_until_idle().await;
    worker.stop().await;
}
