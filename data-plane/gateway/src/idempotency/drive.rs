//! One run under a key, from its dispatch to its kept answer, whether or not a client is there.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use http_body_util::BodyExt;

use super::Idempotency;
use super::key::IdempotencyKey;
use super::running::{Head, MAX_ANSWER_BYTES, RunningAnswer};
use super::store::{Answer, Run, Store};
use crate::error::GatewayError;
use crate::metrics::IdempotencyOutcome;

/// How a stream that has come to its end closes; one that failed on its way has an error event instead. No text of a
/// model can look like it: in an event's JSON a line break is escaped.
const END_MARK: &[u8] = b"data: [DONE]\n\n";
/// Headers that belong to the answer rather than to the moment of a request, as its limits do.
const KEPT_HEADERS: [&str; 5] =
    ["content-type", "cache-control", "x-accel-buffering", "x-weir-overload", "x-weir-granted-max-tokens"];

/// The right to run a key, and to write down what became of it.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    store: Arc<Store>,
    key: IdempotencyKey,
    received_at: DateTime<Utc>,
    /// Runs before this one.
    runs_before: u32,
}

impl Claim {
    pub(super) fn new(
        store: Arc<Store>,
        key: IdempotencyKey,
        received_at: DateTime<Utc>,
        runs_before: u32,
    ) -> Self {
        Self { store, key, received_at, runs_before }
    }

    /// The request was dispatched: from now on the key is known, also to the next start.
    pub(crate) async fn began(&self) {
        self.write(self.runs_before + 1, None).await;
    }

    /// The request was refused or failed before its answer began: the run does not count.
    async fn forget(&self) {
        let began = self.store.look(self.key.name()).is_some_and(|known| known.runs > self.runs_before);
        match (began, self.runs_before) {
            (false, _) => {}
            (true, 0) => {
                let (store, name) = (self.store.clone(), self.key.name().to_owned());
                drop(tokio::task::spawn_blocking(move || store.remove(&name)).await);
            }
            (true, runs) => self.write(runs, None).await,
        }
    }

    async fn keep(&self, head: &Head, body: Bytes) {
        if body.len() > MAX_ANSWER_BYTES {
            return;
        }
        let header =
            |name: &&str| Some(((*name).to_owned(), head.headers.get(*name)?.to_str().ok()?.to_owned()));
        let headers = KEPT_HEADERS.iter().filter_map(header).collect();
        self.write(self.runs_before + 1, Some(Answer { status: head.status.as_u16(), headers, body })).await;
    }

    /// A disk that fails costs repeats, not the answer.
    async fn write(&self, runs: u32, answer: Option<Answer>) {
        let (store, name) = (self.store.clone(), self.key.name().to_owned());
        let run = Run::new(self.key.request().to_owned(), runs, self.received_at);
        let written = tokio::task::spawn_blocking(move || store.put(&name, run, answer.as_ref())).await;
        if let Err(error) = written.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "an Idempotency-Key or its answer could not be kept");
        }
    }
}

/// A run. Dropped, it has left the map of those that run.
#[derive(Debug)]
pub(super) struct Drive {
    idempotency: Arc<Idempotency>,
    claim: Claim,
    answer: Arc<RunningAnswer>,
}

impl Drive {
    pub(super) fn new(idempotency: Arc<Idempotency>, claim: Claim, answer: Arc<RunningAnswer>) -> Self {
        Self { idempotency, claim, answer }
    }

    /// To the end of the answer, the end of the grace, or the gateway's. Dropping `answering`, or the body of what it
    /// gave, cancels the request.
    pub(super) async fn run(self, answering: impl Future<Output = Result<Response, GatewayError>>) {
        tokio::select! {
            biased;
            () = self.follow(answering) => {}
            () = self.abandoned() => self.idempotency.metrics.idempotency(IdempotencyOutcome::Abandoned),
            () = self.idempotency.stop.cancelled() => {}
        }
    }

    async fn follow(&self, answering: impl Future<Output = Result<Response, GatewayError>>) {
        let answered = answering.await;
        if answered.is_err() {
            self.claim.forget().await;
            // Before anyone reads the refusal: who asks again after it is not to join it.
            self.idempotency.leave(&self.claim.key, &self.answer, false);
        }
        let (parts, body) = answered.unwrap_or_else(GatewayError::into_response).into_parts();
        let is_stream = parts
            .headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let head = Head { status: parts.status, headers: parts.headers };
        if is_stream { self.stream(head, body).await } else { self.whole(head, body).await }
    }

    async fn stream(&self, head: Head, mut body: Body) {
        self.answer.begin(head.clone());
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(chunk) = frame.into_data() else { continue };
            if chunk.ends_with(END_MARK)
                && let Some(whole) = self.answer.with_last(&chunk)
            {
                self.claim.keep(&head, whole).await;
            }
            self.answer.push(chunk);
        }
        self.answer.end();
    }

    async fn whole(&self, head: Head, body: Body) {
        // It was made whole, in memory.
        let Ok(body) = body.collect().await else { return };
        let body = body.to_bytes();
        if head.status == StatusCode::OK {
            self.claim.keep(&head, body.clone()).await;
        }
        self.answer.answer(head, body);
    }

    /// Waits until nobody has wanted the answer for the grace, and then is out of everybody's reach.
    async fn abandoned(&self) {
        loop {
            self.answer.abandoned(self.idempotency.grace).await;
            if self.idempotency.leave(&self.claim.key, &self.answer, true) {
                return;
            }
        }
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.idempotency.leave(&self.claim.key, &self.answer, false);
    }
}
