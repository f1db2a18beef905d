//! The clients: seeded requests of many tenants, some of whom leave early; each keeps a receipt.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::random::Random;
use super::receipt::{Outcome, Receipt, Tokens};
use crate::api::{Tenant, chat_body};

/// Between two tries of a client that was refused or could not connect.
const RETRY_AFTER: Duration = Duration::from_millis(150);
/// A cancelled request is closed within a step of its worker; steps are long where the machine is busy.
const CANCELLATION: Duration = Duration::from_secs(1);
/// A client that never gets through gives up; no outage here lasts that long.
const PATIENCE: Duration = Duration::from_secs(180);

/// What to send.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Choices.
    pub seed: u64,
    /// Requests that must end otherwise than by a refusal or for want of a connection.
    pub requests: usize,
    /// Clients at once.
    pub at_once: usize,
}

/// Where the load stands; faults are timed by it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Requests that are over.
    pub done: AtomicUsize,
    in_flight: AtomicUsize,
    left_at: Mutex<Vec<Instant>>,
    receipts: Mutex<Vec<Receipt>>,
}

impl Progress {
    /// Requests that a gateway may hold now: those that clients wait for, and those that they left a moment ago, which the
    /// gateway closes once the worker has said how far it came.
    pub fn in_flight(&self) -> usize {
        let just_left = self.left_at.lock().unwrap().iter().filter(|at| at.elapsed() <= CANCELLATION).count();
        self.in_flight.load(Ordering::SeqCst) + just_left
    }

    /// Takes over the receipts of another load.
    pub fn adopt(&self, receipts: Vec<Receipt>) {
        self.receipts.lock().unwrap().extend(receipts);
    }

    /// All receipts so far.
    pub fn receipts(&self) -> Vec<Receipt> {
        self.receipts.lock().unwrap().clone()
    }
}

/// Sends everything; every try of every client leaves a receipt in `progress`.
pub async fn send(load: Load, tenants: &[Tenant], progress: Arc<Progress>) {
    stream::iter(0..load.requests)
        .for_each_concurrent(load.at_once, |number| {
            let mut random = Random::of(load.seed, number as u64);
            let tenant = &tenants[usize::try_from(random.below(tenants.len() as u64)).unwrap()];
            client(tenant, (load.seed, number), random, &progress)
        })
        .await;
}

/// One client: tries until it is served or leaves.
async fn client(tenant: &Tenant, (seed, number): (u64, usize), mut random: Random, progress: &Progress) {
    let request = Request::choose(number, &mut random);
    let started = Instant::now();
    for attempt in 0.. {
        assert!(started.elapsed() < PATIENCE, "request {number} got no answer for {PATIENCE:?}");
        let receipt = request.send(tenant, format!("{seed:x}-{number}-{attempt}"), progress).await;
        let again = match &receipt.outcome {
            Outcome::Refused(status) => {
                assert!(matches!(status, 429 | 503), "request {number} is refused with {status}");
                true
            }
            // Its answer was lost: a client asks again, as another request.
            Outcome::Broken => true,
            Outcome::Completed(_) | Outcome::Left | Outcome::Fault => false,
        };
        progress.receipts.lock().unwrap().push(receipt);
        if !again {
            break;
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
    progress.done.fetch_add(1, Ordering::Relaxed);
}

/// A request before it is sent.
#[derive(Debug)]
struct Request {
    prompt: String,
    max_tokens: u64,
    seed: u64,
    streams: bool,
    /// When its client leaves, if it does.
    leaves_after: Option<Duration>,
}

impl Request {
    fn choose(number: usize, random: &mut Random) -> Self {
        // A few long answers: more than one progress interval, so that a crash meets requests with noted progress.
        let max_tokens = if random.once_in(25) { 160 } else { 1 + random.below(16) };
        Self {
            prompt: format!("Tell story {number}. ").repeat(1 + usize::try_from(random.below(4)).unwrap()),
            max_tokens,
            seed: random.next() >> 1,
            streams: random.once_in(2),
            leaves_after: random.once_in(7).then(|| Duration::from_millis(random.below(400))),
        }
    }

    async fn send(&self, tenant: &Tenant, id: String, progress: &Progress) -> Receipt {
        let mut receipt = Receipt {
            id: id.clone(),
            tenant: tenant.id.clone(),
            outcome: Outcome::Left,
            took: Duration::ZERO,
            first_byte: None,
            peak_pieces_a_second: 0,
            pieces: 0,
        };
        let mut body = chat_body(
            &self.prompt,
            json!({"max_tokens": self.max_tokens, "temperature": 1.0, "seed": self.seed, "metadata": {"request_id": id}}),
        );
        if self.streams {
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        let started = Instant::now();
        progress.in_flight.fetch_add(1, Ordering::SeqCst);
        let exchange = self.exchange(tenant, &body, started, &mut receipt);
        let outcome = match self.leaves_after {
            Some(patience) => tokio::time::timeout(patience, exchange).await.unwrap_or(Outcome::Left),
            None => exchange.await,
        };
        if outcome == Outcome::Left {
            progress.left_at.lock().unwrap().push(Instant::now());
        }
        progress.in_flight.fetch_sub(1, Ordering::SeqCst);
        Receipt { outcome, took: started.elapsed(), ..receipt }
    }

    async fn exchange(
        &self,
        tenant: &Tenant,
        body: &Value,
        started: Instant,
        receipt: &mut Receipt,
    ) -> Outcome {
        let bytes = serde_json::to_vec(body).unwrap();
        let Ok(response) = tenant.api.send(Method::POST, "/chat/completions", bytes).await else {
            return Outcome::Broken;
        };
        if response.status() != StatusCode::OK {
            let status = response.status();
            let text = response.text().await.unwrap_or_default();
            // A replica lost before the first token is told with a status; the request was charged what it cost.
            return if text.contains("replica_lost") {
                Outcome::Fault
            } else {
                Outcome::Refused(status.as_u16())
            };
        }
        if self.streams {
            return read_stream(response, started, receipt).await;
        }
        let answer: Option<Value> = response.json().await.ok();
        receipt.first_byte = Some(started.elapsed());
        answer.map_or(Outcome::Broken, |answer| Outcome::Completed(tokens(&answer["usage"])))
    }
}

async fn read_stream(response: Response, started: Instant, receipt: &mut Receipt) -> Outcome {
    let (mut body, mut text) = (response.bytes_stream(), Vec::new());
    let mut arrivals: Vec<Instant> = Vec::new();
    let (mut told, mut ended) = (None, false);
    while let Some(chunk) = body.next().await {
        let Ok(chunk) = chunk else { return Outcome::Broken };
        receipt.first_byte.get_or_insert_with(|| started.elapsed());
        text.extend_from_slice(&chunk);
        while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = text.drain(..end + 2).collect();
            let event = String::from_utf8(event).unwrap();
            let Some(data) = event.trim_end().strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                ended = true;
                continue;
            }
            let data: Value = serde_json::from_str(data).unwrap();
            if !data["error"].is_null() {
                return Outcome::Fault;
            }
            if data["usage"].is_object() {
                told = Some(tokens(&data["usage"]));
            }
            if data["choices"][0]["delta"]["content"].as_str().is_some_and(|content| !content.is_empty()) {
                receipt.pieces += 1;
                arrivals.push(Instant::now());
                let second =
                    arrivals.iter().rev().take_while(|arrival| arrival.elapsed() <= Duration::from_secs(1));
                receipt.peak_pieces_a_second = receipt.peak_pieces_a_second.max(second.count() as u64);
            }
        }
    }
    match (ended, told) {
        (true, Some(tokens)) => Outcome::Completed(tokens),
        _ => Outcome::Broken,
    }
}

fn tokens(usage: &Value) -> Tokens {
    let count = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("no usage in {usage}"));
    Tokens {
        prompt: count(&usage["prompt_tokens"]),
        cached: usage["prompt_tokens_details"]["cached_tokens"].as_i64().unwrap_or_default(),
        generated: count(&usage["completion_tokens"]),
    }
}
