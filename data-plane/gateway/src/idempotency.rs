//! `Idempotency-Key`: whatever number of times a request comes under one key, it runs once and is answered the same.
//!
//! A keyed request is driven by a task of its own, which writes the answer to a [`RunningAnswer`]; the response of every
//! client, the first's too, reads that. So a repeat joins what runs, a client that goes away stops nothing for a stated
//! grace, and a finished answer is kept in the [`Store`] before its last bytes are sent. Never: what an answer says, or
//! what it costs. That one key is charged once is the ledger's to hold, by the hash in the charge record.
//!
//! A run that gave no whole answer (cut off, failed on its way, the gateway killed) leaves the key with its request and
//! the number of its runs: a repeat runs anew. It costs nothing, since the key was charged, so the number is bounded.

mod drive;
mod key;
mod running;
mod store;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::GatewayError;
use crate::metrics::{IdempotencyOutcome, Metrics};
use drive::Drive;
use running::{Reader, RunningAnswer};
use store::{Answer, Known};

pub(crate) use drive::Claim;
pub(crate) use key::IdempotencyKey;
pub(crate) use store::Store;

/// Says that the answer was given before, as Stripe does.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Runs of one key in a day that leave no answer. Clients try three times by default.
const MAX_RUNS: u32 = 4;
/// As many as connections by default: each may be without one for the grace.
const MAX_RUNNING: usize = 4096;
/// Files that are too old are looked for this often.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Why a key cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IdempotencyError {
    #[error("the Idempotency-Key came with another request before")]
    Reused,
    #[error("the Idempotency-Key ran {MAX_RUNS} times without a whole answer")]
    Spent,
    #[error("the running answer is too long to be joined")]
    TooLongToJoin,
    #[error("too many requests with an Idempotency-Key run")]
    TooManyRunning,
}

/// All keys of this gateway.
#[derive(Debug)]
pub(crate) struct Idempotency {
    store: Arc<Store>,
    running: Mutex<HashMap<String, Running>>,
    /// How long a request goes on with no client.
    grace: Duration,
    metrics: Metrics,
    /// Owns the drives.
    tasks: TaskTracker,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Running {
    request: String,
    answer: Arc<RunningAnswer>,
}

/// What is to be done about a keyed request.
enum Turn {
    Join(Reader),
    Replay,
    Run { claim: Claim, answer: Arc<RunningAnswer>, reader: Reader },
}

impl Idempotency {
    pub(crate) fn new(store: Arc<Store>, grace: Duration, metrics: Metrics, tasks: TaskTracker) -> Self {
        let (running, stop) = (Mutex::default(), CancellationToken::new());
        Self { store, running, grace, metrics, tasks, stop }
    }

    /// Answers a keyed request, received at `at`: by one that runs, by a kept answer, or by `run`, which tells its claim
    /// as soon as the request was dispatched.
    pub(crate) async fn answer<F>(
        self: &Arc<Self>,
        key: &IdempotencyKey,
        at: DateTime<Utc>,
        run: impl FnOnce(Claim) -> F,
    ) -> Result<Response, GatewayError>
    where
        F: Future<Output = Result<Response, GatewayError>> + Send + 'static,
    {
        let reader = loop {
            match self.turn(key, at)? {
                Turn::Join(reader) => {
                    self.metrics.idempotency(IdempotencyOutcome::Joined);
                    break reader;
                }
                Turn::Replay => {
                    // Otherwise its file was damaged and is gone now, and the key is new.
                    if let Some(answer) = self.kept(key).await {
                        self.metrics.idempotency(IdempotencyOutcome::Replayed);
                        return replayed(answer);
                    }
                }
                Turn::Run { claim, answer, reader } => {
                    let drive = Drive::new(self.clone(), claim.clone(), answer);
                    self.tasks.spawn(drive.run(run(claim)));
                    break reader;
                }
            }
        };
        let ended = || match self.stop.is_cancelled() {
            true => GatewayError::Stopping,
            false => GatewayError::Internal("a keyed request was ended without an answer"),
        };
        reader.response().await.ok_or_else(ended)
    }

    fn turn(&self, key: &IdempotencyKey, at: DateTime<Utc>) -> Result<Turn, IdempotencyError> {
        let turn = self.find(key, at);
        if matches!(turn, Err(IdempotencyError::Reused | IdempotencyError::Spent)) {
            self.metrics.idempotency(IdempotencyOutcome::Conflict);
        }
        turn
    }

    fn find(&self, key: &IdempotencyKey, at: DateTime<Utc>) -> Result<Turn, IdempotencyError> {
        let mut running = self.running.lock();
        let is_full = running.len() >= MAX_RUNNING;
        let place = match running.entry(key.name().to_owned()) {
            Entry::Occupied(running) if running.get().request != key.request() => {
                return Err(IdempotencyError::Reused);
            }
            Entry::Occupied(running) => {
                return running.get().answer.join().map(Turn::Join).ok_or(IdempotencyError::TooLongToJoin);
            }
            Entry::Vacant(place) => place,
        };
        // A run that ends is in the store before it leaves the map.
        let runs = match self.store.look(key.name()) {
            Some(known) if known.request != key.request() => return Err(IdempotencyError::Reused),
            Some(Known { is_answered: true, .. }) => return Ok(Turn::Replay),
            Some(Known { runs, .. }) if runs >= MAX_RUNS => return Err(IdempotencyError::Spent),
            Some(Known { runs, .. }) => runs,
            None => 0,
        };
        if is_full {
            return Err(IdempotencyError::TooManyRunning);
        }
        let (answer, reader) = RunningAnswer::new();
        let answer = Arc::new(answer);
        place.insert(Running { request: key.request().to_owned(), answer: answer.clone() });
        Ok(Turn::Run { claim: Claim::new(self.store.clone(), key.clone(), at, runs), answer, reader })
    }

    async fn kept(&self, key: &IdempotencyKey) -> Option<Answer> {
        let (store, name) = (self.store.clone(), key.name().to_owned());
        tokio::task::spawn_blocking(move || store.read(&name)).await.ok().flatten()
    }

    /// Takes a run off the map unless `unless_read` and someone reads it. Whether it is off.
    fn leave(&self, key: &IdempotencyKey, answer: &Arc<RunningAnswer>, unless_read: bool) -> bool {
        let mut running = self.running.lock();
        if unless_read && answer.has_readers() {
            return false;
        }
        // After it was abandoned another run may have its place.
        if running.get(key.name()).is_some_and(|found| Arc::ptr_eq(&found.answer, answer)) {
            running.remove(key.name());
        }
        true
    }

    /// Ends what still runs; its records are closed as cancelled.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Removes files that are too old, again and again, until cancelled.
    pub(crate) async fn keep_sweeping(self: Arc<Self>, cancel: CancellationToken) {
        while cancel.run_until_cancelled(tokio::time::sleep(SWEEP_INTERVAL)).await.is_some() {
            let store = self.store.clone();
            drop(tokio::task::spawn_blocking(move || store.sweep()).await);
        }
    }
}

fn replayed(answer: Answer) -> Result<Response, GatewayError> {
    let damaged = || GatewayError::Internal("a kept answer has a damaged head");
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).map_err(|_| damaged())?;
    let headers = response.headers_mut();
    for (name, value) in answer.headers {
        let name = HeaderName::try_from(name).map_err(|_| damaged())?;
        headers.insert(name, HeaderValue::try_from(value).map_err(|_| damaged())?);
    }
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}
