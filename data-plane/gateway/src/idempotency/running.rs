//! The answer of a request that runs, as far as it has come: written by the one task that drives the request, read by
//! every client that asked for it, each at its own pace.
//!
//! Memory: at most [`MAX_ANSWER_BYTES`] are held for a request. A longer answer still reaches those who read it as it
//! comes; its beginning is let go, so it can be neither joined nor kept, and a reader that far behind is cut off.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures::stream;
use tokio::sync::{Notify, watch};

/// Some 65,000 streamed tokens of 250 bytes each.
pub(super) const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Status and headers of an answer.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
}

impl Head {
    pub(super) fn respond(&self, body: Body) -> Response {
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        response.headers_mut().clone_from(&self.headers);
        response
    }
}

/// The writing side.
#[derive(Debug)]
pub(super) struct RunningAnswer {
    progress: watch::Sender<Progress>,
    /// Someone came to read.
    joined: Notify,
}

#[derive(Debug, Default)]
struct Progress {
    head: Option<Arc<Head>>,
    chunks: VecDeque<Bytes>,
    bytes: usize,
    /// Chunks that were let go.
    dropped: usize,
    over: bool,
}

/// The reading side: an HTTP response that is being sent.
#[derive(Debug)]
pub(super) struct Reader {
    progress: watch::Receiver<Progress>,
    /// Number of the next chunk, counted from the beginning.
    next: usize,
}

impl RunningAnswer {
    /// With its first reader.
    pub(super) fn new() -> (Self, Reader) {
        let (sender, receiver) = watch::channel(Progress::default());
        (Self { progress: sender, joined: Notify::new() }, Reader { progress: receiver, next: 0 })
    }

    /// One more reader, from the beginning on; `None` if that is gone.
    pub(super) fn join(&self) -> Option<Reader> {
        let progress = self.progress.subscribe();
        let is_whole = progress.borrow().dropped == 0;
        self.joined.notify_one();
        is_whole.then_some(Reader { progress, next: 0 })
    }

    pub(super) fn has_readers(&self) -> bool {
        self.progress.receiver_count() > 0
    }

    /// Waits until nobody has read for as long as `grace`.
    pub(super) async fn abandoned(&self, grace: Duration) {
        loop {
            self.progress.closed().await;
            if tokio::time::timeout(grace, self.joined.notified()).await.is_err() && !self.has_readers() {
                return;
            }
        }
    }

    /// The head of a streamed answer.
    pub(super) fn begin(&self, head: Head) {
        self.progress.send_modify(|progress| progress.head = Some(Arc::new(head)));
    }

    /// The next chunk of a streamed answer.
    pub(super) fn push(&self, chunk: Bytes) {
        self.progress.send_modify(|progress| progress.push(chunk));
    }

    /// Nothing more comes.
    pub(super) fn end(&self) {
        self.progress.send_modify(|progress| progress.over = true);
    }

    /// A whole answer at once.
    pub(super) fn answer(&self, head: Head, body: Bytes) {
        self.progress.send_modify(|progress| {
            progress.head = Some(Arc::new(head));
            progress.push(body);
            progress.over = true;
        });
    }

    /// The answer as it will be with `last` after what came; `None` if its beginning is gone.
    pub(super) fn with_last(&self, last: &Bytes) -> Option<Bytes> {
        let progress = self.progress.borrow();
        if progress.dropped > 0 {
            return None;
        }
        let mut whole = BytesMut::with_capacity(progress.bytes + last.len());
        progress.chunks.iter().for_each(|chunk| whole.extend_from_slice(chunk));
        whole.extend_from_slice(last);
        Some(whole.freeze())
    }
}

impl Progress {
    fn push(&mut self, chunk: Bytes) {
        self.bytes += chunk.len();
        self.chunks.push_back(chunk);
        while self.bytes > MAX_ANSWER_BYTES && self.chunks.len() > 1 {
            self.bytes -= self.chunks.pop_front().map_or(0, |chunk| chunk.len());
            self.dropped += 1;
        }
    }
}

impl Reader {
    /// The response, as soon as its head is known; `None` if the request was ended before.
    pub(super) async fn response(mut self) -> Option<Response> {
        let (head, whole) = {
            let progress = self.progress.wait_for(|progress| progress.head.is_some()).await.ok()?;
            let is_whole = progress.over && progress.dropped == 0 && progress.chunks.len() == 1;
            (progress.head.clone()?, progress.chunks.front().filter(|_| is_whole).cloned())
        };
        let body = match whole {
            // Its length is told.
            Some(body) => Body::from(body),
            None => Body::from_stream(stream::unfold(self, |mut reader| async move {
                let chunk = reader.chunk().await?;
                Some((chunk, reader))
            })),
        };
        Some(head.respond(body))
    }

    /// The next chunk; an error closes the connection, so that no client takes a part for the whole.
    async fn chunk(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            {
                let progress = self.progress.borrow_and_update();
                let Some(at) = self.next.checked_sub(progress.dropped) else {
                    return Some(Err(io::Error::other("the reader is too far behind")));
                };
                if let Some(chunk) = progress.chunks.get(at) {
                    self.next += 1;
                    return Some(Ok(chunk.clone()));
                }
                if progress.over {
                    return None;
                }
            }
            if self.progress.changed().await.is_err() {
                return Some(Err(io::Error::other("the request was ended")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head { status: StatusCode::OK, headers: HeaderMap::new() }
    }

    async fn rest(reader: Reader) -> Result<Bytes, axum::Error> {
        axum::body::to_bytes(reader.response().await.unwrap().into_body(), usize::MAX).await
    }

    #[tokio::test]
    async fn all_readers_get_the_same_bytes_whenever_they_come() {
        let (answer, first) = RunningAnswer::new();
        let before = answer.join().unwrap();
        answer.begin(head());
        answer.push("ab".into());
        let between = answer.join().unwrap();
        let mut reading = tokio::task::JoinSet::new();
        reading.spawn(rest(first));
        assert_eq!(answer.with_last(&"c".into()).unwrap(), "abc");
        answer.push("c".into());
        answer.end();
        let after = answer.join().unwrap();
        drop(answer);
        for reader in [before, between, after] {
            assert_eq!(rest(reader).await.unwrap(), "abc");
        }
        assert_eq!(reading.join_next().await.unwrap().unwrap().unwrap(), "abc");
    }

    #[tokio::test]
    async fn a_whole_answer_tells_its_length_and_an_ended_request_is_no_answer() {
        let (answer, reader) = RunningAnswer::new();
        answer.answer(head(), "{}".into());
        let response = reader.response().await.unwrap();
        assert_eq!(axum::body::HttpBody::size_hint(response.body()).exact(), Some(2));

        let (answer, early) = RunningAnswer::new();
        let late = answer.join().unwrap();
        drop(answer);
        assert!(early.response().await.is_none() && late.response().await.is_none());

        let (answer, cut) = RunningAnswer::new();
        answer.begin(head());
        answer.push("part".into());
        drop(answer);
        assert!(rest(cut).await.is_err());
    }

    #[tokio::test]
    async fn a_longer_answer_reaches_who_keeps_up_and_nobody_else() {
        let (answer, mut quick) = RunningAnswer::new();
        let slow = answer.join().unwrap();
        answer.begin(head());
        let chunk = Bytes::from(vec![b'x'; MAX_ANSWER_BYTES / 4]);
        for _ in 0..4 {
            answer.push(chunk.clone());
            assert_eq!(quick.chunk().await.unwrap().unwrap().len(), chunk.len());
        }
        assert!(answer.join().is_some());
        answer.push(chunk.clone());
        assert_eq!(quick.chunk().await.unwrap().unwrap().len(), chunk.len());
        assert!(answer.join().is_none() && answer.with_last(&chunk).is_none());
        assert_eq!(answer.progress.borrow().bytes, MAX_ANSWER_BYTES);
        assert!(rest(slow).await.is_err());
    }

    #[tokio::test]
    async fn it_is_abandoned_a_whole_grace_after_the_last_reader() {
        let (grace, step) = (Duration::from_millis(100), Duration::from_millis(60));
        let (answer, first) = RunningAnswer::new();
        let begin = tokio::time::Instant::now();
        let clients = async {
            // Longer than the grace: a reader is there.
            tokio::time::sleep(3 * step).await;
            let second = answer.join();
            drop(first);
            tokio::time::sleep(step).await;
            drop(second);
            // Shorter: one comes back, and the grace begins anew.
            tokio::time::sleep(step).await;
            drop(answer.join());
        };
        tokio::join!(answer.abandoned(grace), clients);
        assert!(begin.elapsed() >= 5 * step + grace);
    }
}
