//! One gateway's session: what goes back to it, and which of its requests a load report already includes.
//!
//! The outbound buffer is bounded. While a gateway that has let it fill up still reads, the engine waits for it, as it would
//! only compute what then waits elsewhere; one that takes nothing for a second is disconnected. A request that is cancelled,
//! or whose session is closed, tells the step loop that has it, which looks before each step.

use std::collections::BTreeSet;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_engine::SequenceId;
use weir_schemas::rpc::worker::StepMessage;

/// Messages, one a step, that may wait for a gateway: some twenty seconds of steps of a small model.
pub(crate) const OUTBOUND_MESSAGES_MAX: usize = 1024;
/// A gateway drains into buffers of its own; one that takes no message for so long is gone or broken.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks at a full buffer.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

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
    live: HashMap<u64, CancelHandle>,
    is_closed: bool,
}

/// What a step loop shall cancel before its next step.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelQueue(Arc<Mutex<Vec<Cancellation>>>);

/// A sequence that is not wanted any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cancellation {
    pub(crate) id: SequenceId,
    /// If it runs already, it is wanted.
    pub(crate) only_if_waiting: bool,
}

impl CancelQueue {
    /// All since the last call.
    pub(crate) fn take(&self) -> Vec<Cancellation> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// How a request is cancelled, whether a step loop has it already or not.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelHandle(Arc<Mutex<CancelState>>);

#[derive(Debug, Default)]
enum CancelState {
    /// On its way to its step loop.
    #[default]
    Arriving,
    /// On its way, and wanted only if a seat is free.
    ArrivingLate,
    Taken(CancelQueue, SequenceId),
    Cancelled,
}

impl CancelHandle {
    /// A step loop has the request: from now on, or at once if it is cancelled already, its queue is told.
    pub(crate) fn taken(&self, queue: &CancelQueue, id: SequenceId) {
        let state = &mut *self.0.lock();
        let tell = |only_if_waiting| queue.0.lock().push(Cancellation { id, only_if_waiting });
        match state {
            CancelState::Cancelled => return tell(false),
            CancelState::ArrivingLate => tell(true),
            CancelState::Arriving | CancelState::Taken(..) => {}
        }
        *state = CancelState::Taken(queue.clone(), id);
    }

    fn cancel(&self) {
        let before = std::mem::replace(&mut *self.0.lock(), CancelState::Cancelled);
        if let CancelState::Taken(queue, id) = before {
            queue.0.lock().push(Cancellation { id, only_if_waiting: false });
        }
    }

    fn cancel_if_waiting(&self) {
        let state = &mut *self.0.lock();
        match state {
            CancelState::Taken(queue, id) => {
                queue.0.lock().push(Cancellation { id: *id, only_if_waiting: true });
            }
            CancelState::Arriving => *state = CancelState::ArrivingLate,
            CancelState::ArrivingLate | CancelState::Cancelled => {}
        }
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

    /// Queues one step's updates. Waits for [`PATIENCE`] at a full buffer; then ends the session.
    pub(crate) fn send(&self, mut message: StepMessage) {
        let looks = PATIENCE.as_millis() / LOOK_AGAIN.as_millis();
        for _ in 0..looks {
            let sent = match &*self.outbound.lock() {
                Some(outbound) => outbound.try_send(message),
                None => return,
            };
            match sent {
                Ok(()) => return,
                Err(mpsc::error::TrySendError::Closed(_)) => return self.close(),
                Err(mpsc::error::TrySendError::Full(unsent)) => message = unsent,
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        tracing::warn!(
            gateway = self.gateway,
            limit = OUTBOUND_MESSAGES_MAX,
            "the gateway does not read its session; disconnecting it"
        );
        self.cut.cancel();
        self.close();
    }

    /// Ends the session: its sequences are cancelled before the next step of their engine, and its reader gets what
    /// is queued.
    pub(crate) fn close(&self) {
        let mut handles = self.handles.lock();
        handles.is_closed = true;
        for handle in handles.live.values() {
            handle.cancel();
        }
        drop(handles);
        self.closed.cancel();
        *self.outbound.lock() = None;
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
    pub(crate) fn received(&self, handle: u64) -> Option<CancelHandle> {
        let mut handles = self.handles.lock();
        if handle <= handles.last {
            return None;
        }
        handles.last = handle;
        handles.pending.insert(handle);
        let cancel = handles.live.entry(handle).or_default().clone();
        if handles.is_closed {
            cancel.cancel();
        }
        Some(cancel)
    }

    /// The request shall end. One that is over is not known any more.
    pub(crate) fn cancel(&self, handle: u64) {
        if let Some(cancel) = self.handles.lock().live.get(&handle) {
            cancel.cancel();
        }
    }

    /// The request shall end unless it has begun to be computed.
    pub(crate) fn cancel_if_waiting(&self, handle: u64) {
        if let Some(cancel) = self.handles.lock().live.get(&handle) {
            cancel.cancel_if_waiting();
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

    fn at_once(id: u64) -> Cancellation {
        Cancellation { id: SequenceId(id), only_if_waiting: false }
    }

    #[test]
    fn a_reader_that_takes_nothing_is_disconnected() {
        let (session, mut receiver) = Session::new(0, "gtw_x".into());
        for _ in 0..OUTBOUND_MESSAGES_MAX {
            session.send(StepMessage::default());
        }
        assert!(!session.closed.is_cancelled());
        session.send(StepMessage::default());
        assert!(session.closed.is_cancelled());
        let mut queued = 0;
        while receiver.try_recv().is_ok() {
            queued += 1;
        }
        assert_eq!(queued, OUTBOUND_MESSAGES_MAX);
    }

    #[test]
    fn a_reader_that_is_slow_is_waited_for() {
        let (session, mut receiver) = Session::new(0, "gtw_x".into());
        let reader = std::thread::spawn(move || {
            let mut read = 0;
            while receiver.blocking_recv().is_some() {
                read += 1;
                std::thread::sleep(Duration::from_micros(20));
            }
            read
        });
        for _ in 0..5 * OUTBOUND_MESSAGES_MAX {
            session.send(StepMessage::default());
        }
        assert!(!session.closed.is_cancelled());
        session.close();
        assert_eq!(reader.join().unwrap(), 5 * OUTBOUND_MESSAGES_MAX);
    }

    #[test]
    fn only_a_live_request_can_be_cancelled_and_its_step_loop_is_told_once() {
        let (session, _receiver) = Session::new(0, "gtw_x".into());
        let queue = CancelQueue::default();
        let [early, late, over, left] = [1, 2, 3, 4].map(|handle| session.received(handle).unwrap());
        session.cancel(1);
        for (cancel, id) in [(&early, 1), (&late, 2), (&over, 3), (&left, 4)] {
            cancel.taken(&queue, SequenceId(id));
        }
        session.cancel(2);
        session.cancel(2);
        session.finished(3);
        session.cancel(3);
        session.cancel(5);
        assert_eq!(queue.take(), [1, 2].map(at_once));
        assert_eq!(queue.take(), []);
    }

    #[test]
    fn who_gives_up_waiting_is_told_of_before_and_after_it_arrives_and_can_still_be_cancelled() {
        let (session, _receiver) = Session::new(0, "gtw_x".into());
        let queue = CancelQueue::default();
        let [early, late] = [1, 2].map(|handle| session.received(handle).unwrap());
        session.cancel_if_waiting(1);
        early.taken(&queue, SequenceId(1));
        late.taken(&queue, SequenceId(2));
        session.cancel_if_waiting(2);
        let if_waiting = |id| Cancellation { id: SequenceId(id), only_if_waiting: true };
        assert_eq!(queue.take(), [1, 2].map(if_waiting));
        session.cancel(1);
        session.cancel_if_waiting(1);
        assert_eq!(queue.take(), [at_once(1)]);
    }

    #[test]
    fn what_is_under_way_ends_with_its_session_and_so_does_what_comes_later() {
        let (session, _receiver) = Session::new(0, "gtw_x".into());
        let queue = CancelQueue::default();
        session.received(1).unwrap().taken(&queue, SequenceId(1));
        let arriving = session.received(2).unwrap();
        session.close();
        arriving.taken(&queue, SequenceId(2));
        session.received(3).unwrap().taken(&queue, SequenceId(3));
        assert_eq!(queue.take(), [1, 2, 3].map(at_once));
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
