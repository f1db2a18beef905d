//! One gateway's session: what goes back to it, and which of its requests a load report already includes.
//!
//! The step loop never waits for a gateway: the outbound buffer is bounded, and a gateway that lets it fill up is
//! disconnected. Cancelling a request and closing a session are flags; the step loops look at them before each step.

use std::collections::BTreeSet;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_schemas::rpc::worker::{SequenceUpdate, StepMessage};

/// Messages, one a step, that may wait for a gateway: some twenty seconds of steps of a small model. A gateway
/// drains into buffers of its own; one that is this far behind is gone or broken.
pub(crate) const OUTBOUND_MESSAGES_MAX: usize = 1024;

/// A session's shared state. The step loops and the RPC task hold it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) gateway: String,
    /// Taken away at the end, so that the reader still gets what is queued.
    outbound: Mutex<Option<mpsc::Sender<StepMessage>>>,
    closed: CancellationToken,
    /// The reader does not read: what is queued is not worth waiting for.
    cut: CancellationToken,
    handles: Mutex<Handles>,
}

#[derive(Debug, Default)]
struct Handles {
    last: u64,
    /// Received, but not in any engine's load yet.
    pending: BTreeSet<u64>,
    /// Received, and not over.
    live: HashMap<u64, CancelFlag>,
}

/// Set once its request shall end.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Session {
    /// A session and the receiving end of its outbound buffer.
    pub(crate) fn new(id: u64, gateway: String) -> (Arc<Self>, mpsc::Receiver<StepMessage>) {
        let (outbound, receiver) = mpsc::channel(OUTBOUND_MESSAGES_MAX);
        let session = Self {
            id,
            gateway,
            outbound: Mutex::new(Some(outbound)),
            closed: CancellationToken::new(),
            cut: CancellationToken::new(),
            handles: Mutex::default(),
        };
        (Arc::new(session), receiver)
    }

    /// Queues one step's updates. Never waits: a full buffer ends the session.
    pub(crate) fn send(&self, updates: Vec<SequenceUpdate>) {
        let sent = match &*self.outbound.lock() {
            Some(outbound) => outbound.try_send(StepMessage { updates }),
            None => return,
        };
        match sent {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                tracing::warn!(
                    gateway = self.gateway,
                    limit = OUTBOUND_MESSAGES_MAX,
                    "the gateway does not read its session; disconnecting it"
                );
                self.cut.cancel();
                self.close();
            }
            Err(mpsc::error::TrySendError::Closed(_)) => self.close(),
        }
    }

    /// Ends the session: its sequences are cancelled before the next step of their engine, and its reader gets what
    /// is queued.
    pub(crate) fn close(&self) {
        self.closed.cancel();
        *self.outbound.lock() = None;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Resolves once the session is over.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Resolves once the session was ended for not being read.
    pub(crate) async fn cut(&self) {
        self.cut.cancelled().await;
    }

    /// Resolves once nobody reads the outbound buffer any more, or the session is over.
    pub(crate) async fn reader_gone(&self) {
        let outbound = self.outbound.lock().clone();
        if let Some(outbound) = outbound {
            tokio::select! {
                () = outbound.closed() => {}
                () = self.closed() => {}
            }
        }
    }

    /// A request came in. `None` if its handle does not ascend: then it would be taken for an older one.
    pub(crate) fn received(&self, handle: u64) -> Option<CancelFlag> {
        let mut handles = self.handles.lock();
        if handle <= handles.last {
            return None;
        }
        handles.last = handle;
        handles.pending.insert(handle);
        Some(handles.live.entry(handle).or_default().clone())
    }

    /// The request shall end. One that is over is not known any more.
    pub(crate) fn cancel(&self, handle: u64) {
        if let Some(flag) = self.handles.lock().live.get(&handle) {
            flag.0.store(true, Ordering::Relaxed);
        }
    }

    /// The request is over.
    pub(crate) fn finished(&self, handle: u64) {
        let mut handles = self.handles.lock();
        handles.pending.remove(&handle);
        handles.live.remove(&handle);
    }

    /// The request is in an engine's load.
    pub(crate) fn included(&self, handle: u64) {
        self.handles.lock().pending.remove(&handle);
    }

    /// The last handle such that it and all before it are included.
    fn last_included(&self) -> u64 {
        let handles = self.handles.lock();
        handles.pending.first().map_or(handles.last, |first| first.saturating_sub(1))
    }
}

/// Every open session.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    next_id: AtomicU64,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    by_id: HashMap<u64, Arc<Session>>,
    latest_of_gateway: HashMap<String, u64>,
}

impl Sessions {
    /// Opens a session; an older one of the same gateway goes on until its own stream ends.
    pub(crate) fn open(&self, gateway: String) -> (Arc<Session>, mpsc::Receiver<StepMessage>) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (session, receiver) = Session::new(id, gateway.clone());
        let mut open = self.open.lock();
        open.by_id.insert(id, session.clone());
        open.latest_of_gateway.insert(gateway, id);
        (session, receiver)
    }

    /// Forgets an ended session.
    pub(crate) fn remove(&self, session: &Session) {
        let mut open = self.open.lock();
        open.by_id.remove(&session.id);
        if open.latest_of_gateway.get(&session.gateway) == Some(&session.id) {
            open.latest_of_gateway.remove(&session.gateway);
        }
    }

    /// What a load report for this gateway includes.
    pub(crate) fn last_included(&self, gateway: &str) -> u64 {
        let open = self.open.lock();
        let latest = open.latest_of_gateway.get(gateway).and_then(|id| open.by_id.get(id));
        latest.map_or(0, |session| session.last_included())
    }

    /// Closes all: their sequences are cancelled.
    pub(crate) fn close_all(&self) {
        for session in self.open.lock().by_id.values() {
            session.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_takes_nothing_is_disconnected_and_nobody_waits() {
        let (session, mut receiver) = Session::new(0, "gtw_x".into());
        for _ in 0..OUTBOUND_MESSAGES_MAX {
            session.send(Vec::new());
        }
        assert!(!session.is_closed());
        session.send(Vec::new());
        assert!(session.is_closed());
        let mut queued = 0;
        while receiver.try_recv().is_ok() {
            queued += 1;
        }
        assert_eq!(queued, OUTBOUND_MESSAGES_MAX);
    }

    #[test]
    fn only_a_live_request_can_be_cancelled() {
        let (session, _receiver) = Session::new(0, "gtw_x".into());
        let (first, second) = (session.received(1).unwrap(), session.received(2).unwrap());
        session.cancel(1);
        session.cancel(3);
        session.finished(2);
        session.cancel(2);
        assert!(first.is_set() && !second.is_set());
    }

    #[test]
    fn a_report_names_the_last_handle_without_a_gap() {
        let sessions = Sessions::default();
        let (session, _receiver) = sessions.open("gtw_x".into());
        for handle in 1..=3 {
            assert!(session.received(handle).is_some());
        }
        assert!(session.received(3).is_none());
        assert_eq!(sessions.last_included("gtw_x"), 0);
        session.included(2);
        assert_eq!(sessions.last_included("gtw_x"), 0);
        session.finished(1);
        assert_eq!(sessions.last_included("gtw_x"), 2);
        session.included(3);
        assert_eq!(sessions.last_included("gtw_x"), 3);
        assert_eq!(sessions.last_included("gtw_other"), 0);
        let (newer, _receiver) = sessions.open("gtw_x".into());
        let num_open = || sessions.open.lock().by_id.len();
        assert_eq!(num_open(), 2);
        sessions.remove(&session);
        assert_eq!(num_open(), 1);
        assert_eq!(sessions.last_included("gtw_x"), 0);
        sessions.remove(&newer);
        assert_eq!(num_open(), 0);
    }
}
