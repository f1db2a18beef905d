//! The floor: an axum handler that reads a request and writes the bytes of an answer that it was given.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{post, put};
use axum::serve::ListenerExt;
use futures::{StreamExt, stream};
use tokio::net::TcpListener;
use tokio_stream::wrappers::IntervalStream;

use crate::backend::until_abandoned;
use crate::load::is_token;
use crate::process::Child;

/// Starts it.
pub(crate) async fn start() -> Child {
    Child::of_this_program(&["bare"]).await
}

/// From now on it answers with the events of this body, a token in so many milliseconds; 0: at once.
pub(crate) async fn repeat(bare: SocketAddr, body: Bytes, interval_ms: u64) {
    crate::load::put(bare, &format!("/answer/{interval_ms}"), body).await;
}

#[derive(Debug, Clone, Default)]
struct Answer {
    /// Server-sent events, those without a token joined to the next that has one.
    chunks: Vec<Bytes>,
    interval: Duration,
}

type Current = Arc<Mutex<Answer>>;

/// The process itself.
pub(crate) async fn serve() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    let router = Router::new()
        .route("/answer/{interval_ms}", put(replace))
        .route("/v1/chat/completions", post(answer))
        .with_state(Current::default());
    let listener = listener.tap_io(|socket| drop(socket.set_nodelay(true)));
    tokio::select! {
        served = axum::serve(listener, router) => served.unwrap(),
        () = until_abandoned() => {}
    }
}

async fn replace(State(current): State<Current>, Path(interval_ms): Path<u64>, body: Bytes) {
    let interval = Duration::from_millis(interval_ms);
    *current.lock().unwrap() = Answer { chunks: chunks(&body), interval };
}

fn chunks(body: &Bytes) -> Vec<Bytes> {
    let (mut chunks, mut start, mut at) = (Vec::new(), 0, 0);
    for event in body.split_inclusive(|&byte| byte == b'\n').collect::<Vec<_>>().chunks(2) {
        let from = at;
        at += event.iter().map(|line| line.len()).sum::<usize>();
        if is_token(&body[from..at]) {
            chunks.push(body.slice(start..at));
            start = at;
        }
    }
    chunks.extend((start < at).then(|| body.slice(start..at)));
    chunks
}

async fn answer(State(current): State<Current>, request: Bytes) -> Response {
    drop(request);
    let Answer { chunks, interval } = current.lock().unwrap().clone();
    let chunks = stream::iter(chunks).map(Ok::<_, std::convert::Infallible>);
    let body = match interval {
        Duration::ZERO => Body::from_stream(chunks),
        interval => {
            let ticks = IntervalStream::new(tokio::time::interval(interval));
            Body::from_stream(chunks.zip(ticks).map(|(chunk, _)| chunk))
        }
    };
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
}
