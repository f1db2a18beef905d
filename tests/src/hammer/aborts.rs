//! Clients that leave at any moment, and what must be left of them: nothing.

use std::net::SocketAddr;
use std::time::Duration;

use futures::{StreamExt, stream};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::api::{Api, Tenant, chat_body};
use crate::cluster::{Cluster, Part};
use crate::faults::random::Random;
use crate::metrics::Scrape;
use crate::wait::until;

/// Clients at once, of the limit on sequences at once: those who left a moment ago still count.
const AT_ONCE: usize = 48;
/// The tenant's sequences at once.
const SEQUENCES: usize = 64;
/// Limits so high that a second gives back whatever was used: what is then missing is held by someone.
const LIMIT: u64 = 1_000_000_000;

/// This many clients leave; everything that is not as it was before is said.
pub async fn run(cluster: &Cluster, operator: &Api, number: usize) -> Vec<String> {
    let limits = json!({"concurrent_sequences": SEQUENCES, "tokens_per_minute": LIMIT, "input_tokens_per_minute": LIMIT,
        "output_tokens_per_minute": LIMIT, "requests_per_minute": LIMIT});
    let tenant = operator.create_tenant("restless", limits, chrono::Utc::now()).await;
    stream::iter(0..number)
        .for_each_concurrent(AT_ONCE, |number| {
            leave(&tenant, cluster.gateway_address(), Random::of(2, number as u64))
        })
        .await;
    let mut wrong = Vec::new();
    everything_is_back(cluster).await;
    wrong.extend(nothing_is_held(&tenant).await);
    wrong.extend(every_seat_can_be_had(&tenant).await);
    everything_is_back(cluster).await;
    wrong.extend(nothing_is_held(&tenant).await);
    eprintln!("hammer: {number} streams left; counters, pages, tokens and seats are as before");
    wrong
}

/// One client that leaves: by dropping its connection before the answer's head, after some of the answer, or in the middle of its
/// own request.
async fn leave(tenant: &Tenant, gateway: SocketAddr, mut random: Random) {
    let prompt = "A story about rivers. ".repeat(1 + usize::try_from(random.below(80)).unwrap());
    let ending = json!({"max_tokens": 1 + random.below(400), "stream": !random.once_in(4)});
    let body = serde_json::to_vec(&chat_body(&prompt, ending)).unwrap();
    let most_us = 1 << (4 + random.below(13));
    let patience = Duration::from_micros(random.below(most_us));
    match random.below(4) {
        0 => {
            let answer = tenant.api.send(Method::POST, "/chat/completions", body);
            drop(tokio::time::timeout(patience, answer).await);
        }
        1 => {
            let sent = usize::try_from(random.below(body.len() as u64)).unwrap();
            break_off(gateway, request_bytes(&tenant.api, &body, sent), patience).await;
        }
        2 => break_off(gateway, request_bytes(&tenant.api, &body, body.len()), patience).await,
        _ => {
            let Some(response) = admitted(&tenant.api, &body).await else { return };
            let mut chunks = response.bytes_stream();
            for _ in 0..random.below(60) {
                if chunks.next().await.is_none() {
                    break;
                }
            }
        }
    }
}

/// Sends this over a connection of its own, waits, and resets it.
async fn break_off(gateway: SocketAddr, bytes: Vec<u8>, patience: Duration) {
    let Ok(mut socket) = TcpStream::connect(gateway).await else { return };
    if socket.write_all(&bytes).await.is_ok() {
        tokio::time::sleep(patience).await;
    }
    // Unread bytes of the answer make the kernel reset the connection.
    drop(socket);
}

/// A request of which only so much of the body is sent.
fn request_bytes(api: &Api, body: &[u8], sent: usize) -> Vec<u8> {
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        api.key().unwrap_or_default(),
        body.len()
    );
    [head.as_bytes(), &body[..sent]].concat()
}

/// The head of an answer; asks until there is a seat.
async fn admitted(api: &Api, body: &[u8]) -> Option<Response> {
    loop {
        let response = api.send(Method::POST, "/chat/completions", body.to_vec()).await.ok()?;
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(response.status(), StatusCode::OK);
            return Some(response);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn everything_is_back(cluster: &Cluster) {
    until("gauges and pages are back", || async {
        let gateway = Scrape::at(&cluster.metrics_url(Part::Gateway)).await;
        let worker = Scrape::at(&cluster.metrics_url(Part::Worker)).await;
        let worker_sums = ["running", "waiting_interactive", "waiting_batch", "kv_pages_referenced"]
            .map(|name| worker.sum(&format!("weir_worker_{name}"), ""));
        let held = worker_sums.iter().sum::<f64>() + gateway.sum("weir_gateway_inflight", "");
        (held == 0.0).then_some(())
    })
    .await;
}

/// By what the next request is told: of every limit, all is left but what it takes itself.
async fn nothing_is_held(tenant: &Tenant) -> Vec<String> {
    // Whatever was used has been refilled.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let body = serde_json::to_vec(&chat_body("Hi", json!({"max_tokens": 1}))).unwrap();
    let response = tenant.api.send(Method::POST, "/chat/completions", body).await.unwrap();
    let left = |name: &str| response.headers()[name].to_str().unwrap().parse::<u64>().unwrap();
    let (requests, tokens) = (left("x-ratelimit-remaining-requests"), left("x-ratelimit-remaining-tokens"));
    let answer: Value = response.json().await.unwrap();
    let own = answer["usage"]["prompt_tokens"].as_u64().unwrap() + 1;
    let mut wrong = Vec::new();
    if requests != LIMIT - 1 {
        wrong.push(format!("after the aborts {} requests are missing", LIMIT - 1 - requests));
    }
    if tokens != LIMIT - own {
        wrong.push(format!("after the aborts {} tokens are held", LIMIT - own - tokens));
    }
    wrong
}

/// The limit on sequences at once admits exactly as many as it says.
async fn every_seat_can_be_had(tenant: &Tenant) -> Vec<String> {
    let long = json!({"max_tokens": 4_000, "temperature": 1.0});
    let streams =
        futures::future::join_all((0..SEQUENCES).map(|_| tenant.api.stream("A long story.", long.clone())))
            .await;
    let (status, answer) =
        tenant.api.post("/chat/completions", &chat_body("Hi", json!({"max_tokens": 1}))).await;
    drop(streams);
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    if status == StatusCode::TOO_MANY_REQUESTS && message.contains("concurrent sequences: Limit 64, Used 64")
    {
        return Vec::new();
    }
    vec![format!("with every seat taken, one more is answered {status}: {answer}")]
}
