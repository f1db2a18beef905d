//! The same answers as an OpenAI-compatible server gives them: what the other gateways ask of one, and streams only.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::prompt::PROMPT_TOKENS;
use crate::schedule::{Listener, Schedule, Sequence, text};

const MODEL: &str = weir_tests::installation::MODEL;

#[derive(Deserialize)]
struct Asked {
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    #[serde(default)]
    stream: bool,
}

pub(super) async fn serve(schedule: Schedule, listener: TcpListener) {
    let router = Router::new()
        .route("/v1/chat/completions", post(complete))
        .route("/v1/models", get(models))
        .route("/health", get(|| async {}))
        .route("/get_model_info", get(model_info))
        .route("/get_server_info", get(model_info))
        .route("/pace/{interval_ms}", put(pace))
        .with_state(schedule);
    let listener = listener.tap_io(|socket| drop(socket.set_nodelay(true)));
    axum::serve(listener, router).await.unwrap();
}

async fn pace(State(schedule): State<Schedule>, Path(interval_ms): Path<u64>) {
    schedule.pace(interval_ms);
}

async fn models() -> Json<Value> {
    Json(
        json!({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "bench"}]}),
    )
}

async fn model_info() -> Json<Value> {
    Json(
        json!({"model_path": MODEL, "tokenizer_path": MODEL, "served_model_name": MODEL, "is_generation": true}),
    )
}

async fn complete(State(schedule): State<Schedule>, body: Bytes) -> Response {
    let Ok(asked) = serde_json::from_slice::<Asked>(&body) else {
        return (StatusCode::BAD_REQUEST, "no completion request").into_response();
    };
    let num_tokens = asked.max_tokens.or(asked.max_completion_tokens).unwrap_or(1);
    if !asked.stream {
        return (StatusCode::BAD_REQUEST, "only streams are answered here").into_response();
    }
    let (listener, tokens) = mpsc::unbounded_channel();
    schedule.start(Sequence { num_tokens, listener: Listener::Http(listener) });
    let chunks = Arc::new(Chunks { num_tokens });
    let opening = chunks.opening();
    let rest = UnboundedReceiverStream::new(tokens).map(move |at| chunks.token(at));
    let all = futures::stream::once(async { opening }).chain(rest).map(Ok::<_, std::convert::Infallible>);
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(all)).into_response()
}

struct Chunks {
    num_tokens: u32,
}

impl Chunks {
    fn opening(&self) -> Bytes {
        chunk(r#"{"role":"assistant","content":""}"#, "null", "null").into()
    }

    /// With the last token all that ends an answer.
    fn token(&self, at: u32) -> Bytes {
        let mut events = chunk(&format!(r#"{{"content":"{}"}}"#, text(at)), "null", "null");
        if at + 1 == self.num_tokens {
            events += &chunk("{}", r#""length""#, "null");
            events += &usage(self.num_tokens);
            events += "data: [DONE]\n\n";
        }
        events.into()
    }
}

fn chunk(delta: &str, finish_reason: &str, usage: &str) -> String {
    format!(
        r#"data: {{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":"{MODEL}","choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish_reason}}}],"usage":{usage}}}"#
    ) + "\n\n"
}

fn usage(num_tokens: u32) -> String {
    let usage = format!(
        r#"{{"prompt_tokens":{PROMPT_TOKENS},"total_tokens":{},"completion_tokens":{num_tokens}}}"#,
        PROMPT_TOKENS + num_tokens as usize
    );
    format!(
        r#"data: {{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":"{MODEL}","choices":[],"usage":{usage}}}"#
    ) + "\n\n"
}
