//! The clients: streams that ask again as soon as they have their answer, each on a connection that it keeps, and hold
//! every answer to what it has to say.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use crate::prompt::{PROMPT_TOKENS, Prompts};
use crate::schedule::text;

/// Longer than the slowest of all takes for a round of a thousand streams.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where to ask, and as whom.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    pub(crate) bearer: String,
}

/// How much to ask.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) streams: usize,
    /// Of each answer.
    pub(crate) tokens: u32,
    /// Each stream asks at least once, and again until this is over.
    pub(crate) at_least: Duration,
}

/// What the clients saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) answers: usize,
    pub(crate) elapsed: Duration,
    /// From the request to the first token of each answer, and to the end of each; ascending.
    pub(crate) first: Vec<Duration>,
    pub(crate) whole: Vec<Duration>,
    /// Events with a token or several, on average.
    pub(crate) token_events: f64,
    /// An answer of a common shape.
    pub(crate) sample: Bytes,
}

#[derive(Clone)]
struct Answer {
    first: Duration,
    whole: Duration,
    token_events: usize,
    body: Bytes,
}

/// An event that has text.
pub(crate) fn is_token(event: &[u8]) -> bool {
    let content: &[u8] = br#""content":" "#;
    event.windows(content.len()).any(|window| window == content)
}

/// Open connections, ready to ask.
pub(crate) struct Streams {
    endpoint: Endpoint,
    connections: Vec<Connection>,
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    _driver: AbortOnDropHandle<()>,
}

impl Connection {
    async fn open(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
        let driver = tokio::task::spawn(async move { drop(driver.await) });
        Self { sender, _driver: AbortOnDropHandle::new(driver) }
    }
}

/// Sends a body; it must be taken.
pub(crate) async fn put(address: SocketAddr, path: &str, body: Bytes) {
    let mut connection = Connection::open(address).await;
    let request = Request::builder().method(Method::PUT).uri(path).header("host", "bench");
    let response = connection.sender.send_request(request.body(Full::new(body)).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

/// Whether a GET is answered with 200.
pub(crate) async fn is_served(endpoint: &Endpoint, path: &str) -> bool {
    if TcpStream::connect(endpoint.address).await.is_err() {
        return false;
    }
    let mut connection = Connection::open(endpoint.address).await;
    let request = Request::builder().uri(path).header("host", "bench");
    let request = request.header("authorization", format!("Bearer {}", endpoint.bearer));
    let response = connection.sender.send_request(request.body(Full::default()).unwrap()).await;
    response.is_ok_and(|response| response.status() == StatusCode::OK)
}

impl Streams {
    pub(crate) async fn open(endpoint: &Endpoint, number: usize) -> Self {
        let mut connections = Vec::new();
        for _ in 0..number {
            connections.push(Connection::open(endpoint.address).await);
        }
        Self { endpoint: endpoint.clone(), connections }
    }

    /// Asks and reads. Panics on an answer that is not what was asked for.
    pub(crate) async fn run(self, prompts: &Arc<Prompts>, plan: Plan) -> Seen {
        static REQUESTS: AtomicU64 = AtomicU64::new(0);
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for mut connection in self.connections {
            let (endpoint, prompts) = (self.endpoint.clone(), prompts.clone());
            tasks.spawn(async move {
                let mut answers = Vec::new();
                while answers.is_empty() || start.elapsed() < plan.at_least {
                    let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
                    let body = prompts.body(weir_tests::installation::MODEL, number, plan.tokens);
                    let answer = ask(&mut connection, &endpoint, body.into());
                    let mut answer =
                        tokio::time::timeout(PATIENCE, answer).await.expect("an answer within patience");
                    answer.token_events = check(&answer.body, plan.tokens);
                    // One sample is enough.
                    if answers.len() > 1 {
                        answer.body = Bytes::new();
                    }
                    answers.push(answer);
                }
                answers
            });
        }
        let answers = tasks.join_all().await.concat();
        Seen::new(answers, start.elapsed())
    }
}

impl Seen {
    fn new(mut answers: Vec<Answer>, elapsed: Duration) -> Self {
        let sorted = |time: fn(&Answer) -> Duration| {
            let mut times: Vec<_> = answers.iter().map(time).collect();
            times.sort_unstable();
            times
        };
        let (first, whole) = (sorted(|answer| answer.first), sorted(|answer| answer.whole));
        let events: usize = answers.iter().map(|answer| answer.token_events).sum();
        let number = answers.len();
        answers.retain(|answer| !answer.body.is_empty());
        answers.sort_by_key(|answer| answer.token_events);
        let sample = answers[answers.len() / 2].body.clone();
        Self { answers: number, elapsed, first, whole, token_events: events as f64 / number as f64, sample }
    }
}

async fn ask(connection: &mut Connection, endpoint: &Endpoint, body: Bytes) -> Answer {
    let request = Request::builder()
        .method(Method::POST)
        .uri("/v1/chat/completions")
        .header("host", "bench")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {}", endpoint.bearer))
        .body(Full::new(body))
        .unwrap();
    let start = Instant::now();
    connection.sender.ready().await.unwrap();
    let response = connection.sender.send_request(request).await.unwrap();
    let (head, mut incoming) = response.into_parts();
    let (mut first, mut body) = (None, BytesMut::new());
    while let Some(frame) = incoming.frame().await {
        let Ok(data) = frame.unwrap().into_data() else { continue };
        if first.is_none() && is_token(&data) {
            first = Some(start.elapsed());
        }
        body.extend_from_slice(&data);
    }
    let whole = start.elapsed();
    let body = body.freeze();
    let told = || String::from_utf8_lossy(&body).into_owned();
    assert_eq!(head.status, StatusCode::OK, "{}", told());
    let first = first.unwrap_or_else(|| panic!("no token: {}", told()));
    Answer { first, whole, token_events: 0, body }
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Delta<'a>,
    finish_reason: Option<&'a str>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    content: Option<&'a str>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: u32,
}

/// The number of events with text, if all of the answer is there.
fn check(body: &[u8], tokens: u32) -> usize {
    let body = std::str::from_utf8(body).unwrap();
    let (mut said, mut events, mut reason, mut used) = (String::new(), 0, None, None);
    let data = body.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    for data in data.clone().filter(|data| *data != "[DONE]") {
        let chunk: Chunk<'_> = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
        used = chunk.usage.or(used);
        for choice in chunk.choices {
            let content = choice.delta.content.unwrap_or_default();
            said.push_str(content);
            events += usize::from(!content.is_empty());
            reason = choice.finish_reason.or(reason);
        }
    }
    let expected: String = (0..tokens).map(text).collect();
    assert_eq!((said, reason, data.last()), (expected, Some("length"), Some("[DONE]")), "{body}");
    let used = used.map(|used| (used.prompt_tokens, used.completion_tokens));
    assert_eq!(used, Some((PROMPT_TOKENS, tokens)), "{body}");
    events
}
