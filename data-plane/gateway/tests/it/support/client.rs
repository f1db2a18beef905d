//! A plain HTTP client over one connection a request, so that dropping it is what a client that goes away does.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::testing::MODEL;

pub struct Client {
    pub address: SocketAddr,
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {:?}", self.body))
    }

    /// Status, `error.type`, `error.code`, `error.param` of an error object, which must be exactly OpenAI's.
    pub fn error(&self) -> (u16, String, Option<String>, Option<String>) {
        assert_eq!(self.headers["content-type"], "application/json");
        let json = self.json();
        let error = json["error"].as_object().unwrap_or_else(|| panic!("no error object: {json}"));
        let mut names: Vec<&str> = error.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["code", "message", "param", "type"]);
        assert!(!error["message"].as_str().unwrap().is_empty());
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        (self.status.as_u16(), text("type").unwrap(), text("code"), text("param"))
    }
}

/// An answer that is read piece by piece; dropping it closes the connection.
pub struct Reading {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    buffered: String,
    _connection: AbortOnDropHandle<()>,
}

impl Reading {
    /// To its end.
    pub async fn whole(self) -> Answer {
        let Self { status, headers, body, _connection, .. } = self;
        Answer { status, headers, body: body.collect().await.unwrap().to_bytes() }
    }

    /// The next server-sent event's data; `None` at the end of the stream.
    pub async fn event(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.buffered.split_once("\n\n") {
                let data = event.strip_prefix("data: ").expect("one data line").to_owned();
                self.buffered = rest.to_owned();
                return Some(data);
            }
            let frame = self.body.frame().await?;
            let data = frame.ok()?.into_data().ok()?;
            self.buffered.push_str(std::str::from_utf8(&data).unwrap());
        }
    }

    /// All events that are left.
    pub async fn events(mut self) -> Vec<String> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            events.push(event);
        }
        events
    }
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Sends a request and gives the head of its answer.
    pub async fn open(&self, method: Method, path: &str, token: Option<&str>, body: Vec<u8>) -> Reading {
        self.open_keyed(method, path, token, None, body).await
    }

    /// The same with an Idempotency-Key.
    pub async fn open_keyed(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        key: Option<&str>,
        body: Vec<u8>,
    ) -> Reading {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::task::spawn(async move {
            drop(connection.await);
        });
        let connection = AbortOnDropHandle::new(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "gateway");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let (head, body) = sender.send_request(request).await.unwrap().into_parts();
        Reading {
            status: head.status,
            headers: head.headers,
            body,
            buffered: String::new(),
            _connection: connection,
        }
    }

    pub async fn send(&self, method: Method, path: &str, token: Option<&str>, body: Vec<u8>) -> Answer {
        self.open(method, path, token, body).await.whole().await
    }

    pub async fn get(&self, path: &str, token: Option<&str>) -> Answer {
        self.send(Method::GET, path, token, Vec::new()).await
    }

    pub async fn post(&self, path: &str, token: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, Some(token), serde_json::to_vec(body).unwrap()).await
    }

    pub async fn chat(&self, token: &str, change: Value) -> Answer {
        self.post("/v1/chat/completions", token, &chat_body(change)).await
    }

    pub async fn chat_stream(&self, token: &str, change: Value) -> Reading {
        let mut body = chat_body(change);
        body["stream"] = json!(true);
        self.open(Method::POST, "/v1/chat/completions", Some(token), serde_json::to_vec(&body).unwrap()).await
    }
}

/// A small chat, changed.
pub fn chat_body(change: Value) -> Value {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hello"}]});
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}
