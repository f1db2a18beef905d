//! Tokens, text, stops and the batch.

use serde_json::Value;
use weir_schemas::rpc::worker::{FinishReason, Generate, Sampling, TokenBias};
use weir_text::{ChatMessage, TextModel};

use crate::support::{TestWorker, fetch_text, generate};

fn chat(text: &TextModel, content: &str) -> Vec<u32> {
    let message = ChatMessage::new("user", content);
    text.encode_rendered(&text.render_chat(&[message], true).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_what_its_tokens_say_and_ends_as_it_should() {
    let worker = TestWorker::ready().await;
    assert_eq!(worker.is_ready(), Ok(()));
    let text = fetch_text(&mut worker.client().await).await;
    let mut session = worker.session().await;
    let prompt = chat(&text, "Say hello.");
    let prompt_tokens = prompt.len() as u64;

    let (whole, finished) = session.complete(generate(1, prompt.clone(), 64)).await;
    assert_eq!(finished.reason(), FinishReason::Stop);
    assert!(text.eos_ids().contains(whole.tokens.last().unwrap()), "the ending token is counted");
    assert_eq!((finished.prompt_tokens, finished.computed_prompt_tokens), (prompt_tokens, prompt_tokens));
    let shown = &whole.tokens[..whole.tokens.len() - 1];
    assert_eq!(whole.text, text.decode(shown));

    // The same tokens up to the limit.
    let (short, finished) = session.complete(generate(2, prompt.clone(), 3)).await;
    assert_eq!((finished.reason(), finished.generated_tokens), (FinishReason::Length, 3));
    assert_eq!(short.tokens, whole.tokens[..3]);

    // A stop string: nothing at or past it is shown; the token that completed it is counted, and is the last.
    let word = whole.text.split_whitespace().nth(2).unwrap();
    let mut with_stop = generate(3, prompt, 64);
    with_stop.stop = vec![word.to_owned()];
    let (stopped, finished) = session.complete(with_stop).await;
    assert_eq!(finished.reason(), FinishReason::Stop);
    assert_eq!(stopped.text, whole.text.split(word).next().unwrap());
    assert_eq!(stopped.tokens, whole.tokens[..stopped.tokens.len()]);
    assert!(text.decode(&stopped.tokens).contains(word));
    assert!(!text.decode(&stopped.tokens[..stopped.tokens.len() - 1]).contains(word));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_at_once_share_steps_and_each_gets_its_own_answer() {
    let worker = TestWorker::ready().await;
    let text = fetch_text(&mut worker.client().await).await;
    let mut session = worker.session().await;
    let prompts: Vec<Vec<u32>> =
        (0..16).map(|n| text.encode(&format!("Number {n} comes before number")).unwrap()).collect();
    let mut alone = Vec::new();
    for (n, prompt) in prompts.iter().enumerate() {
        alone.push(session.complete(generate(100 + n as u128, prompt.clone(), 8)).await.0.tokens);
    }
    let before = session.num_messages;
    let mut handles = Vec::new();
    for (n, prompt) in prompts.iter().enumerate() {
        handles.push(session.send(generate(200 + n as u128, prompt.clone(), 8)).await);
    }
    for (handle, alone) in handles.iter().zip(&alone) {
        assert_eq!(session.finish(*handle).await.0.tokens, *alone, "the batch changes nothing");
    }
    // One message a step, not one a sequence and token: the sixteen ran together.
    assert!(session.num_messages - before < 8 * 16 / 2, "{} messages", session.num_messages - before);
    worker.wait_until_idle().await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tokenizer_from_the_file_equals_the_reference() {
    let worker = TestWorker::ready().await;
    let text = fetch_text(&mut worker.client().await).await;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/reference/fixtures/tokenizer_smollm2.json");
    let fixtures: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let texts = fixtures["texts"].as_array().unwrap();
    assert!(texts.len() > 100);
    for case in texts {
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(text.encode(case["text"].as_str().unwrap()).unwrap(), ids, "{}", case["text"]);
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_tokens_are_shown_by_name_only_where_the_request_says_so() {
    let worker = TestWorker::ready().await;
    let mut session = worker.session().await;
    // `<|im_start|>`, which ends nothing, whatever the model would say.
    let always = |number| Generate {
        sampling: Some(Sampling {
            top_p: 1.0,
            logit_bias: vec![TokenBias { token: 1, bias: 100.0 }],
            ..Sampling::default()
        }),
        ..generate(number, (600..620).collect(), 3)
    };
    let (hidden, _) = session.complete(always(1)).await;
    assert_eq!((hidden.tokens, hidden.text.as_str()), (vec![1; 3], ""));
    let (shown, _) = session.complete(Generate { shown_control_tokens: vec![1], ..always(2) }).await;
    assert_eq!((shown.tokens, shown.text), (vec![1; 3], "<|im_start|>".repeat(3)));
    let many = Generate { shown_control_tokens: vec![1; 17], ..always(3) };
    assert_eq!(session.complete(many).await.1.reason(), FinishReason::RefusedInvalid);
    worker.stop().await;
}
