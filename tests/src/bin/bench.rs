//! Load through the whole path: one installation of its own, streams at several concurrencies, and what their readers
//! saw. Prints a table; judges nothing. `make bench`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::allow_attributes,
    reason = "a benchmark prints, and fails by panicking"
)]

use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream;
use serde_json::json;
use weir_tests::api::Api;
use weir_tests::installation::Installation;

/// Generated tokens of each request.
const TOKENS: u64 = 64;
/// Requests at each concurrency, so that every seat is filled several times.
const ROUNDS: usize = 4;

/// What one reader saw.
struct Seen {
    first: Duration,
    gaps: Vec<Duration>,
    tokens: u64,
}

#[tokio::main]
async fn main() {
    let installation = Installation::start();
    let operator = Api::operator(&installation);
    let api = operator.create_tenant("bench", json!({}), chrono::Utc::now()).await.api;
    println!(
        "SmolLM2-135M-Instruct Q4_1 through gateway and worker, {TOKENS} tokens a request, milliseconds"
    );
    println!("{:>7} {:>10} {:>22} {:>22}", "streams", "tokens/s", "first token p50/p99", "gap p50/p99");
    run(&api, 1).await;
    for streams in [1, 4, 16, 32] {
        let started = Instant::now();
        let seen = run(&api, streams).await;
        let elapsed = started.elapsed().as_secs_f64();
        let tokens: u64 = seen.iter().map(|seen| seen.tokens).sum();
        let firsts = seen.iter().map(|seen| seen.first).collect();
        let gaps = seen.iter().flat_map(|seen| seen.gaps.iter().copied()).collect();
        println!(
            "{streams:>7} {:>10.1} {:>22} {:>22}",
            tokens as f64 / elapsed,
            quantiles(firsts),
            quantiles(gaps)
        );
    }
}

async fn run(api: &Api, streams: usize) -> Vec<Seen> {
    stream::iter(0..streams * ROUNDS)
        .map(|number| read(api, number))
        .buffer_unordered(streams)
        .collect()
        .await
}

async fn read(api: &Api, number: usize) -> Seen {
    let prompt = format!("Write a very long story about ship number {number}. ").repeat(8);
    let started = Instant::now();
    let response =
        api.stream(&prompt, json!({"max_tokens": TOKENS, "temperature": 1.0, "seed": number})).await;
    let (mut body, mut text) = (response.bytes_stream(), String::new());
    let (mut first, mut last, mut gaps) = (None, started, Vec::new());
    while let Some(chunk) = body.next().await {
        let now = Instant::now();
        match first {
            None => first = Some(now - started),
            Some(_) => gaps.push(now - last),
        }
        last = now;
        text.push_str(&String::from_utf8_lossy(&chunk.unwrap()));
    }
    let (_, usage) = text.rsplit_once("\"completion_tokens\":").unwrap();
    let digits: String = usage.chars().take_while(char::is_ascii_digit).collect();
    Seen { first: first.unwrap(), gaps, tokens: digits.parse().unwrap() }
}

fn quantiles(mut values: Vec<Duration>) -> String {
    values.sort_unstable();
    let at = |per_cent: usize| values[(values.len() - 1) * per_cent / 100].as_secs_f64() * 1e3;
    if values.is_empty() { "-".to_owned() } else { format!("{:.1} / {:.1}", at(50), at(99)) }
}
