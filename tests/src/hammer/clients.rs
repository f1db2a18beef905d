//! The clients that hammer: each asks again as soon as it is answered, and a moment after it is refused.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use chrono::Utc;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::api::{Tenant, chat_body, events};
use crate::faults::random::Random;

/// What an answered client was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: i64,
    /// Tokens generated.
    pub generated: i64,
}

/// What all clients saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// By the client's own id of the request.
    pub answered: Mutex<HashMap<String, Usage>>,
    /// Refusals.
    pub refused: AtomicU64,
    /// When an `x-ratelimit-limit-tokens` was first met, microseconds of the wall clock.
    pub limits: Mutex<HashMap<i64, i64>>,
    /// Everything that should not have been.
    pub wrong: Mutex<Vec<String>>,
    /// Set when it is enough.
    pub over: AtomicBool,
}

impl Seen {
    /// When a limit was first met, if it was.
    pub fn limit_since(&self, per_minute: i64) -> Option<i64> {
        self.limits.lock().unwrap().get(&per_minute).copied()
    }
}

/// One client, until it is enough.
pub async fn hammer(tenant: &Tenant, number: u64, seen: &Seen) {
    let mut random = Random::of(1, number);
    for turn in 0.. {
        if seen.over.load(Ordering::Relaxed) {
            return;
        }
        let id = format!("hammer-{number}-{turn}");
        if !ask(tenant, id, &mut random, seen).await {
            seen.refused.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(10 + random.below(40))).await;
        }
    }
}

/// Whether it was answered.
async fn ask(tenant: &Tenant, id: String, random: &mut Random, seen: &Seen) -> bool {
    let streams = random.once_in(2);
    let body = request(&id, streams, random);
    let bytes = serde_json::to_vec(&body).unwrap();
    let response = match tenant.api.send(Method::POST, "/chat/completions", bytes).await {
        Ok(response) => response,
        Err(error) => {
            seen.wrong.lock().unwrap().push(format!("{id}: {error}"));
            return false;
        }
    };
    let limit = response.headers().get("x-ratelimit-limit-tokens");
    if let Some(limit) = limit.and_then(|limit| limit.to_str().ok()?.parse().ok()) {
        seen.limits.lock().unwrap().entry(limit).or_insert_with(|| Utc::now().timestamp_micros());
    }
    match response.status() {
        StatusCode::OK => {}
        StatusCode::TOO_MANY_REQUESTS => return false,
        status => {
            let text = response.text().await.unwrap_or_default();
            seen.wrong.lock().unwrap().push(format!("{id}: {status} {text}"));
            return false;
        }
    }
    let usage = if streams {
        let events = events(response).await;
        events.iter().rev().find_map(|event| usage(&event["usage"]))
    } else {
        usage(&response.json::<Value>().await.unwrap_or_default()["usage"])
    };
    match usage {
        Some(usage) => drop(seen.answered.lock().unwrap().insert(id, usage)),
        None => seen.wrong.lock().unwrap().push(format!("{id}: answered without a usage")),
    }
    true
}

/// Prompts of 20 to some 220 tokens; caps of a large part of a minute's limit, or none, that a stop string mostly cuts
/// short, less generous ones, and tight ones that hold.
fn request(id: &str, streams: bool, random: &mut Random) -> Value {
    let words = "river ".repeat(1 + usize::try_from(random.below(200)).unwrap());
    let ending = match random.below(4) {
        0 => json!({"stop": ["e", "a"]}),
        1 => json!({"max_tokens": 2_000 + random.below(4_000), "stop": ["e", "a"]}),
        2 => json!({"max_tokens": 200 + random.below(600), "stop": ["z", "q", "x"]}),
        _ => json!({"max_tokens": 1 + random.below(64)}),
    };
    let mut body = chat_body(&words, ending);
    body["metadata"] = json!({"request_id": id});
    body["seed"] = json!(random.below(1 << 40));
    body["temperature"] = json!(1.0);
    if streams {
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

fn usage(usage: &Value) -> Option<Usage> {
    Some(Usage { prompt: usage["prompt_tokens"].as_i64()?, generated: usage["completion_tokens"].as_i64()? })
}
