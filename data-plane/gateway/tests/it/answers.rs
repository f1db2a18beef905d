//! What clients get: bodies, chunks, usage, records.

use hyper::Method;
use serde_json::{Value, json};
use weir_schemas::records::FinishReason as RecordedReason;
use weir_schemas::rpc::worker::grammar::Kind;
use weir_schemas::rpc::worker::{FinishReason, TokenBias};

use crate::support::worker::Script;
use crate::support::{Harness, prompt_tokens};
use crate::testing::{MODEL, key, tenant, version};

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_answered_whole_and_charged() {
    let harness = Harness::new(1).await;
    let reason = FinishReason::Length;
    harness.workers[0].script(Script::Answer { texts: vec!["Hel", "lo", "!"], reason, cached: 3 });
    let metadata = json!({"request_id": "mine-1"});
    let answer = harness.client.chat(&harness.token, json!({"max_tokens": 3, "metadata": metadata})).await;
    assert_eq!(answer.status, 200);
    assert!(answer.headers["x-request-id"].to_str().unwrap().starts_with("req_"));
    let json = answer.json();
    assert_eq!(
        json["choices"][0]["message"],
        json!({"role": "assistant", "content": "Hello!", "refusal": null})
    );
    assert_eq!(json["choices"][0]["finish_reason"], "length");
    let prompt = prompt_tokens("hello");
    assert_eq!(
        json["usage"],
        json!({"prompt_tokens": prompt, "completion_tokens": 3, "total_tokens": prompt + 3,
               "prompt_tokens_details": {"cached_tokens": 3},
               "completion_tokens_details": {"reasoning_tokens": 0}})
    );

    let charge = harness.ledger.wait_charges(1).await.remove(0);
    assert_eq!(charge.id, answer.headers["x-request-id"].to_str().unwrap());
    let data = charge.data;
    assert_eq!((data.tenant, data.key, data.version), (tenant(), key(), version()));
    assert_eq!((data.prompt_tokens, data.cached_prompt_tokens, data.generated_tokens), (prompt, 3, 3));
    assert_eq!(data.finish_reason, RecordedReason::Length);
    assert_eq!(data.client_request_id.as_deref(), Some("mine-1"));
    assert_eq!((data.inter_token.count, data.replicas.len(), data.sequence), (2, 1, 1));
    assert_eq!((data.queue_us, data.prefill_us), (10, 20));
    assert!(data.ttft_us.is_some() && data.slo.ttft_met.is_some() && !data.stream);

    let sent = harness.workers[0].requests().remove(0);
    assert_eq!((sent.attempt, sent.max_tokens, sent.prompt.len() as u64), (1, 3, prompt));
    assert_eq!(harness.inflight(), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_streamed_as_openais_clients_expect() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::answer(&["Hel", "", "lo"]));
    let options = json!({"stream_options": {"include_usage": true}});
    let reading = harness.client.chat_stream(&harness.token, options).await;
    assert_eq!(reading.status, 200);
    assert!(reading.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let events = reading.events().await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    for chunk in &chunks {
        assert_eq!(
            (chunk["object"].as_str(), chunk["model"].as_str()),
            (Some("chat.completion.chunk"), Some(MODEL))
        );
        assert_eq!(chunk["id"], chunks[0]["id"]);
    }
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let (usage, rest) = chunks.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 3);
    assert_eq!(usage["usage"]["prompt_tokens"], prompt_tokens("hello"));
    assert!(rest.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
    let text: String =
        rest.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "Hello");
    let reasons: Vec<&Value> = rest.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
    assert_eq!(reasons.last().unwrap().as_str(), Some("stop"));
    assert!(reasons[..reasons.len() - 1].iter().all(|reason| reason.is_null()));
    harness.ledger.wait_charges(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_completion_in_both_forms() {
    let harness = Harness::new(1).await;
    let mut body = json!({"model": MODEL, "prompt": "once", "max_tokens": 5});
    let answer = harness.client.post("/v1/completions", &harness.token, &body).await.json();
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["choices"][0]["text"], "Hello");
    assert_eq!(answer["usage"]["prompt_tokens"], 4);

    body["stream"] = json!(true);
    let body = serde_json::to_vec(&body).unwrap();
    let events =
        harness.client.open(Method::POST, "/v1/completions", Some(&harness.token), body).await.events().await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "Hello");
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
    harness.ledger.wait_charges(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_reach_the_worker_as_given() {
    let harness = Harness::new(1).await;
    let change = json!({
        "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "seed": 42, "stop": ["x"], "max_tokens": 9,
        "priority": "batch", "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.5,
        "logit_bias": {"7": -1.5}, "n": 2, "logprobs": true, "top_logprobs": 4,
    });
    assert_eq!(harness.client.chat(&harness.token, change).await.status, 200);
    let sent = harness.workers[0].requests().remove(0);
    let sampling = sent.sampling.unwrap();
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.5, 0.25, 7));
    assert_eq!((sampling.min_p, sampling.seed), (0.125, 42));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty), (0.5, -0.5));
    assert_eq!((sampling.repetition_penalty, sampling.logprobs, sent.n), (1.5, Some(4), 2));
    assert_eq!(sampling.logit_bias, [TokenBias { token: 7, bias: -1.5 }]);
    assert_eq!((sent.stop, sent.max_tokens, sent.class), (vec!["x".to_owned()], 9, 2));
    assert_eq!(sent.tenant_id, tenant().to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_form_of_an_answer_reaches_the_worker_and_its_refusal_the_client() {
    let harness = Harness::new(1).await;
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}});
    assert_eq!(harness.client.chat(&harness.token, json!({"response_format": schema})).await.status, 200);
    let sent = harness.workers[0].requests().remove(0).grammar.unwrap();
    assert_eq!(sent.kind, Some(Kind::JsonSchema(r#"{"type":"integer"}"#.into())));
    assert!(sent.budget_aware);
    harness.workers[0].script(Script::Refuse(FinishReason::RefusedInvalid));
    let answer = harness.client.chat(&harness.token, json!({"response_format": schema})).await;
    assert_eq!(answer.error().0, 400);
    assert_eq!(
        (answer.error().3.as_deref(), answer.error().2.as_deref()),
        (Some("response_format"), Some("invalid_value"))
    );
    let charges = harness.ledger.wait_charges(2).await;
    assert_eq!((charges[1].data.finish_reason, charges[1].data.prompt_tokens), (RecordedReason::Rejected, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_are_one_request_one_reservation_and_one_charge() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::Answer {
        texts: vec!["Hel", "lo"],
        reason: FinishReason::Length,
        cached: 3,
    });
    let answer = harness.client.chat(&harness.token, json!({"n": 3, "logprobs": true})).await.json();
    for (index, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&choice["index"], &choice["message"]["content"]), (&json!(index), &json!("Hello")));
        assert_eq!(choice["finish_reason"], "length");
        let tokens: Vec<_> = choice["logprobs"]["content"].as_array().unwrap().iter().collect();
        assert_eq!((tokens.len(), &tokens[0]["logprob"]), (2, &json!(-0.5)));
    }
    assert_eq!(answer["choices"].as_array().unwrap().len(), 3);
    let prompt = prompt_tokens("hello");
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    assert_eq!(answer["usage"]["prompt_tokens"], prompt);

    let events = harness.client.chat_stream(&harness.token, json!({"n": 2})).await.events().await;
    assert_eq!(events.iter().filter(|event| *event == "[DONE]").count(), 1);
    for index in 0..2 {
        let chunks = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
        let own: Vec<_> = chunks
            .map(|chunk| chunk["choices"][0].clone())
            .filter(|choice| choice["index"] == index)
            .collect();
        let text: String = own.iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(text, "Hello");
        assert_eq!(own.first().unwrap()["delta"]["role"], "assistant");
        assert_eq!(own.last().unwrap()["finish_reason"], "length");
    }
    let charges = harness.ledger.wait_charges(2).await;
    let counts = charges
        .iter()
        .map(|c| (c.data.n, c.data.prompt_tokens, c.data.cached_prompt_tokens, c.data.generated_tokens));
    assert_eq!(counts.collect::<Vec<_>>(), [(3, prompt, 3, 6), (2, prompt, 3, 4)]);
    assert_eq!(charges[0].data.finish_reason, RecordedReason::Length);
    assert_eq!(harness.inflight(), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_ends_every_choice() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::Hold(vec!["a", "b"]));
    let mut reading = harness.client.chat_stream(&harness.token, json!({"n": 3})).await;
    reading.event().await.unwrap();
    drop(reading);
    let charge = harness.ledger.wait_charges(1).await.remove(0).data;
    assert_eq!((charge.finish_reason, charge.n, charge.generated_tokens), (RecordedReason::Cancelled, 3, 6));
    assert_eq!(harness.workers[0].cancelled(), 3);
    assert_eq!(harness.inflight(), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_and_health() {
    let harness = Harness::new(1).await;
    let list = harness.client.get("/v1/models", Some(&harness.token)).await.json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], MODEL);
    assert_eq!(list["data"][0]["object"], "model");
    assert_eq!(list["data"][0]["device"], json!(["sim"]));
    assert_eq!((&list["data"][0]["status"], &list["data"][0]["inflight"]), (&json!("ready"), &json!(0)));
    assert_eq!(list["data"][0]["p50_ttft_ms"], Value::Null);
    let one = harness.client.get(&format!("/v1/models/{MODEL}"), Some(&harness.token)).await.json();
    assert_eq!(one, list["data"][0]);
    let none = harness.client.get("/v1/models/org/none", Some(&harness.token)).await;
    assert_eq!(none.error().0, 404);
    assert_eq!(harness.client.get("/v1/models", None).await.error().0, 401);
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(harness.client.get(path, None).await.status, 200, "{path}");
    }
    assert_eq!(harness.metric("weir_gateway_responses_total{status=\"401\"}"), Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn how_a_model_is_served_now_can_be_asked() {
    let harness = Harness::new(1).await;
    let path = format!("/v1/metrics/serving?model={MODEL}");
    let before = harness.client.get(&path, Some(&harness.token)).await.json();
    assert_eq!(
        before,
        json!({"model": MODEL, "ttft_p50_ms": null, "ttft_p99_ms": null, "tpot_p50_ms": null, "gpu_util": 0.0,
               "kv_cache_used_pct": 0.0, "queue_depth": 0})
    );
    harness.client.chat(&harness.token, json!({})).await;
    harness.ledger.wait_charges(1).await;
    harness.workers[0].report(|load| {
        (load.pages_referenced, load.device_busy) = (25, 0.5);
        (load.waiting_interactive, load.waiting_batch) = (2, 1);
    });
    let told = async || harness.client.get(&path, Some(&harness.token)).await.json();
    let mut after = told().await;
    for _ in 0..200 {
        if after["queue_depth"] == 3 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        after = told().await;
    }
    assert_eq!((&after["gpu_util"], &after["kv_cache_used_pct"]), (&json!(50.0), &json!(25.0)));
    assert_eq!(after["queue_depth"], 3);
    assert!(after["ttft_p50_ms"].as_f64().unwrap() > 0.0 && after["tpot_p50_ms"].as_f64().is_some());
    let get = async |path: &str, token| harness.client.get(path, token).await.error();
    assert_eq!(get("/v1/metrics/serving", Some(&harness.token)).await.0, 400);
    assert_eq!(get("/v1/metrics/serving?model=none", Some(&harness.token)).await.0, 404);
    assert_eq!(get(&path, None).await.0, 401);
    let model = harness.client.get(&format!("/v1/models/{MODEL}"), Some(&harness.token)).await.json();
    assert_eq!(model["p50_ttft_ms"], after["ttft_p50_ms"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_fault_is_a_500_before_the_first_token_and_an_event_after_it() {
    let harness = Harness::new(1).await;
    harness.workers[0].script(Script::Refuse(FinishReason::Error));
    let answer = harness.client.chat_stream(&harness.token, json!({})).await;
    assert_eq!(answer.status, 500);
    drop(answer);
    harness.workers[0].script(Script::Answer { texts: vec!["Hel"], reason: FinishReason::Error, cached: 0 });
    let events = harness.client.chat_stream(&harness.token, json!({})).await.events().await;
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "engine_failed");
    let charges = harness.ledger.wait_charges(2).await;
    let counts: Vec<_> = charges.iter().map(|c| (c.data.finish_reason, c.data.generated_tokens)).collect();
    assert_eq!(counts, [(RecordedReason::Error, 0), (RecordedReason::Error, 1)]);
}
