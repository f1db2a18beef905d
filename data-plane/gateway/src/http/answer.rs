//! What both completion endpoints do around the pipeline: authenticate, read, start, and write the answer, whole or
//! as server-sent events.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use weir_schemas::records::Tier;

use super::openai_error::ErrorBody;
use super::router::{Edge, RequestName};
use super::{body, load_headers, rate_limit_headers};
use crate::admission::LimitStates;
use crate::authenticate::authenticate;
use crate::error::GatewayError;
use crate::generation::{Event, Generation};
use crate::idempotency::{Claim, IdempotencyKey};
use crate::openai::answer::{AnswerWriter, Asked, Choice, Endpoint, Usage, sse};
use crate::openai::{CompletionRequest, ParameterError};
use crate::pipeline::{Arrived, Started};
use crate::record::Counts;

/// OpenAI's header for a project; recorded as a label up to this length.
const PROJECT_HEADER: &str = "openai-project";
const MAX_PROJECT_CHARS: usize = 128;

pub(super) type Parse = fn(&[u8]) -> Result<CompletionRequest, ParameterError>;

/// One completion request from headers to the last byte.
pub(super) async fn create(
    edge: &Arc<Edge>,
    endpoint: Endpoint,
    parse: Parse,
    request: Request,
) -> Result<Response, GatewayError> {
    let (parts, incoming) = request.into_parts();
    let config = edge.config.load();
    let authorization = parts.headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let principal = match authenticate(&config, authorization, edge.clock.now()) {
        Ok(principal) => principal,
        Err(error) => {
            body::discard(incoming, &edge.tasks);
            return Err(error.into());
        }
    };
    let body = body::read(&parts.headers, incoming, edge.max_body_bytes, &edge.tasks).await?;
    let (at, instant) = (edge.clock.now(), Instant::now());
    if edge.is_refusing() {
        return Err(GatewayError::Stopping);
    }
    let key = IdempotencyKey::of(&parts.headers, principal.tenant, parts.uri.path(), &body)?;
    let request = parse(&body)?;
    drop(body);
    let RequestName(request_id) =
        *parts.extensions.get().ok_or(GatewayError::Internal("a request without a name"))?;
    let asked = Asked {
        endpoint,
        model: request.model.clone(),
        n: request.n as usize,
        has_logprobs: request.logprobs.is_some(),
        include_usage: request.include_usage,
        service_tier: request.names_tier.then_some(match request.tier {
            Tier::Interactive => "default",
            Tier::Batch => "flex",
        }),
    };
    let project = project(&parts.headers);
    let idempotency_key_hash = key.as_ref().map(IdempotencyKey::charge_hash);
    let arrived =
        Arrived { request_id, at, instant, principal, project, idempotency_key_hash, config, request };
    let Some(key) = key else { return answer(edge, asked, arrived, None).await };
    let run = |claim| {
        let edge = edge.clone();
        async move { answer(&edge, asked, arrived, Some(claim)).await }
    };
    edge.idempotency.answer(&key, at, run).await
}

/// From the pipeline to the first byte of the answer. Dropping the future, or the body that it gives, cancels.
async fn answer(
    edge: &Arc<Edge>,
    mut asked: Asked,
    arrived: Arrived,
    claim: Option<Claim>,
) -> Result<Response, GatewayError> {
    let (request_id, at, stream) = (arrived.request_id, arrived.at, arrived.request.stream);
    let started = edge.pipeline.start(arrived).await?;
    let Started { mut generation, limits, model, artifact_digest, text, load, relief } = started;
    if let Some(claim) = claim {
        claim.began().await;
    }
    asked.model = model;
    let writer = AnswerWriter::new(asked, request_id, at.timestamp(), &artifact_digest, text);
    // The first event is awaited before the status is sent, so that a refusal has its own.
    let first = generation.next().await?;
    let mut response = if stream {
        event_stream(generation, writer, first, &limits)
    } else {
        whole(generation, writer, first, &limits).await?
    };
    load_headers::insert(response.headers_mut(), load.0, load.1);
    load_headers::insert_relief(response.headers_mut(), relief);
    Ok(response)
}

async fn whole(
    mut generation: Generation,
    mut writer: AnswerWriter,
    first: Event,
    limits: &LimitStates,
) -> Result<Response, GatewayError> {
    let mut choices: Vec<Choice> = Vec::new();
    choices.resize_with(writer.num_choices(), Choice::default);
    let mut event = first;
    loop {
        match event {
            Event::Said { choice, said, logprobs } => {
                let choice = &mut choices[choice];
                choice.said.add(said);
                choice.logprobs.extend(logprobs);
            }
            Event::Finished { choice, reason } => choices[choice].reason = Some(reason),
            Event::End(counts) => {
                let body = writer.whole(&choices, usage(counts));
                return Ok(respond("application/json", Body::from(body), limits));
            }
        }
        event = generation.next().await?;
    }
}

/// State of a stream between two chunks.
enum Streaming {
    Opening { generation: Generation, first: Event },
    Running(Generation),
    Over,
}

fn event_stream(
    generation: Generation,
    writer: AnswerWriter,
    first: Event,
    limits: &LimitStates,
) -> Response {
    let start = Streaming::Opening { generation, first };
    let chunks = stream::unfold((start, writer), |(state, mut writer)| async move {
        let (chunk, state) = next_chunk(state, &mut writer).await?;
        Some((Ok::<Bytes, std::convert::Infallible>(chunk), (state, writer)))
    });
    let mut response = respond("text/event-stream; charset=utf-8", Body::from_stream(chunks), limits);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer would hold tokens back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

async fn next_chunk(state: Streaming, writer: &mut AnswerWriter) -> Option<(Bytes, Streaming)> {
    match state {
        Streaming::Opening { generation, first } => {
            let mut chunk = writer.opening();
            let (rest, state) = chunk_of(Ok(first), generation, writer);
            chunk.extend_from_slice(&rest);
            Some((chunk.into(), state))
        }
        Streaming::Running(mut running) => loop {
            let event = running.next().await;
            match chunk_of(event, running, writer) {
                // The end of a call says nothing of its own.
                (chunk, Streaming::Running(more)) if chunk.is_empty() => running = more,
                told => return Some(told),
            }
        },
        Streaming::Over => None,
    }
}

fn chunk_of(
    event: Result<Event, GatewayError>,
    generation: Generation,
    writer: &mut AnswerWriter,
) -> (Bytes, Streaming) {
    match event {
        Ok(Event::Said { choice, said, logprobs }) => {
            (writer.piece(choice, said, &logprobs), Streaming::Running(generation))
        }
        Ok(Event::Finished { choice, reason }) => {
            (writer.finished(choice, reason), Streaming::Running(generation))
        }
        Ok(Event::End(counts)) => (writer.end(usage(counts)), Streaming::Over),
        // What OpenAI's clients raise as an APIError; no end mark follows.
        Err(error) => (sse(&ErrorBody::new(&error)), Streaming::Over),
    }
}

fn respond(content_type: &'static str, body: Body, limits: &LimitStates) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    rate_limit_headers::insert(response.headers_mut(), limits);
    response
}

fn usage(counts: Counts) -> Usage {
    let Counts { prompt_tokens, cached_prompt_tokens, generated_tokens, reasoning_tokens } = counts;
    Usage::new(prompt_tokens, cached_prompt_tokens, generated_tokens, reasoning_tokens)
}

fn project(headers: &HeaderMap) -> Option<String> {
    let project = headers.get(PROJECT_HEADER)?.to_str().ok()?.trim();
    (!project.is_empty()).then(|| project.chars().take(MAX_PROJECT_CHARS).collect())
}
