//! An open load: requests come when they come, whether earlier ones are answered or not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::api::{Api, chat_body, parse_events};
use crate::faults::random::Random;

/// Tokens that a request asks for, and gets unless it is cut.
pub const ANSWER_TOKENS: u64 = 40;

/// Whose request, and of what kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Interactive, of a tenant that lets a smaller model answer.
    Interactive,
    /// Interactive, of one that does not.
    Firm,
    /// Batch, of the first tenant.
    Batch,
}

/// What became of one request.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Whose it was.
    pub kind: Kind,
    /// Seconds from the start of the load to its arrival, and to its last byte.
    pub span: (f64, f64),
    /// The answer's.
    pub status: StatusCode,
    /// `error.code` of a refusal.
    pub code: String,
    /// To the first piece of the answer.
    pub ttft: Option<Duration>,
    /// In the answer.
    pub tokens: u64,
    /// That answered.
    pub model: String,
    /// `x-weir-overload`.
    pub overload: Option<String>,
    /// `x-weir-granted-max-tokens`.
    pub granted: Option<u64>,
    /// `x-weir-queue-depth`.
    pub queue_depth: Option<u64>,
    /// `retry-after` is there.
    pub says_when: bool,
}

/// The two tenants.
#[derive(Debug, Clone)]
pub struct Callers {
    /// Lets a smaller model answer.
    pub lenient: Api,
    /// Does not.
    pub firm: Api,
}

/// Sends `per_s` requests a second for so long, then waits for what is left. Of ten requests eight are interactive, one
/// of those firm, and two are batch.
pub async fn send(callers: &Callers, per_s: f64, lasts: Duration, seed: u64) -> Vec<Outcome> {
    let callers = Arc::new(callers.clone());
    let (outcomes, mut receiver) = mpsc::unbounded_channel();
    let (mut random, started) = (Random::new(seed), Instant::now());
    let mut next = Duration::ZERO;
    for number in 0.. {
        next += gap(&mut random, per_s);
        if next >= lasts {
            break;
        }
        tokio::time::sleep_until((started + next).into()).await;
        let kind = match random.below(10) {
            0 | 1 => Kind::Batch,
            2 => Kind::Firm,
            _ => Kind::Interactive,
        };
        let (callers, outcomes) = (callers.clone(), outcomes.clone());
        tokio::task::spawn(async move {
            drop(outcomes.send(one(&callers, kind, number, started).await));
        });
    }
    drop(outcomes);
    let mut all = Vec::new();
    while let Some(outcome) = receiver.recv().await {
        all.push(outcome);
    }
    all
}

/// So many clients, each with one request at a time, for so long.
pub async fn closed(callers: &Callers, clients: u64, lasts: Duration) -> Vec<Outcome> {
    let started = Instant::now();
    let client = |number: u64| async move {
        let mut outcomes = Vec::new();
        while started.elapsed() < lasts {
            let request = number + clients * outcomes.len() as u64;
            outcomes.push(one(callers, Kind::Interactive, request, started).await);
        }
        outcomes
    };
    futures::future::join_all((0..clients).map(client)).await.into_iter().flatten().collect()
}

/// Exponential, of which a Poisson process is made.
fn gap(random: &mut Random, per_s: f64) -> Duration {
    let unit = (random.below(1 << 53) as f64 + 1.0) / (1_u64 << 53) as f64;
    Duration::from_secs_f64(-unit.ln() / per_s)
}

/// One request from its first byte to its last.
pub async fn one(callers: &Callers, kind: Kind, number: u64, started: Instant) -> Outcome {
    let api = if kind == Kind::Firm { &callers.firm } else { &callers.lenient };
    let priority = if kind == Kind::Batch { "batch" } else { "interactive" };
    let body = chat_body(
        &format!("Tell me story {number}."),
        json!({
            "max_tokens": ANSWER_TOKENS, "priority": priority, "seed": number, "temperature": 1.0,
            "stream": true, "stream_options": {"include_usage": true},
        }),
    );
    let sent = Instant::now();
    let response = api.send(Method::POST, "/chat/completions", serde_json::to_vec(&body).unwrap()).await;
    let response = response.expect("the gateway answers");
    let (status, headers) = (response.status(), response.headers().clone());
    let mut outcome = Outcome {
        kind,
        span: (sent.duration_since(started).as_secs_f64(), 0.0),
        status,
        code: String::new(),
        ttft: None,
        tokens: 0,
        model: String::new(),
        overload: text(&headers, "x-weir-overload"),
        granted: text(&headers, "x-weir-granted-max-tokens").map(|tokens| tokens.parse().unwrap()),
        queue_depth: text(&headers, "x-weir-queue-depth").map(|depth| depth.parse().unwrap()),
        says_when: headers.contains_key("retry-after"),
    };
    if status == StatusCode::OK {
        let (mut pieces, mut bytes) = (response.bytes_stream(), Vec::new());
        while let Some(piece) = pieces.next().await {
            bytes.extend_from_slice(&piece.expect("no stream breaks"));
            outcome.ttft.get_or_insert_with(|| sent.elapsed());
        }
        read(&String::from_utf8(bytes).unwrap(), &mut outcome);
    } else {
        let error: Value = response.json().await.unwrap();
        outcome.code = error["error"]["code"].as_str().unwrap_or_default().to_owned();
    }
    outcome.span.1 = started.elapsed().as_secs_f64();
    outcome
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().unwrap().to_owned())
}

fn read(events: &str, outcome: &mut Outcome) {
    assert!(events.ends_with("data: [DONE]\n\n"), "a stream ended with {:?}", events.lines().rev().nth(1));
    for event in parse_events(events).iter().filter(|event| event.is_object()) {
        outcome.model = event["model"].as_str().unwrap().to_owned();
        if let Some(tokens) = event["usage"]["completion_tokens"].as_u64() {
            outcome.tokens = tokens;
        }
    }
}
