//! How far every running request has come, noted in the record log at least each second. One task notes for all,
//! whatever the requests' clients do: a reader that has stalled must not widen what a crash can lose.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use weir_schemas::ids::{RequestId, WorkerId};
use weir_schemas::records::PROGRESS_NOTE_INTERVAL;

use crate::record::{Counts, Ending, OpenRecord};
use crate::routing::{Arrivals, Mailbox};

/// The records of all requests that run.
#[derive(Debug, Default)]
pub(crate) struct ProgressBoard {
    running: Mutex<HashMap<RequestId, Arc<Mutex<Live>>>>,
}

#[derive(Debug)]
struct Live {
    /// Taken by its close.
    record: Option<OpenRecord>,
    /// Of the choices of the attempt that runs.
    mailboxes: Vec<Arc<Mailbox>>,
    noted_tokens: u64,
}

/// The record of a request while it runs.
#[derive(Debug)]
pub(super) struct WatchedRecord {
    board: Arc<ProgressBoard>,
    request: RequestId,
    live: Arc<Mutex<Live>>,
}

impl ProgressBoard {
    pub(super) fn watch(self: &Arc<Self>, record: OpenRecord) -> WatchedRecord {
        let request = record.request();
        let live =
            Arc::new(Mutex::new(Live { record: Some(record), mailboxes: Vec::new(), noted_tokens: 0 }));
        self.running.lock().insert(request, live.clone());
        WatchedRecord { board: self.clone(), request, live }
    }

    /// Notes every request that has got tokens since it was last noted.
    pub(crate) fn note_all(&self) {
        let running: Vec<Arc<Mutex<Live>>> = self.running.lock().values().cloned().collect();
        for live in running {
            live.lock().note();
        }
    }

    /// Requests between dispatch and close.
    pub(crate) fn running(&self) -> usize {
        self.running.lock().len()
    }

    /// Notes all, again and again, until cancelled.
    pub(crate) async fn keep_noting(self: Arc<Self>, cancel: CancellationToken) {
        while cancel.run_until_cancelled(tokio::time::sleep(PROGRESS_NOTE_INTERVAL)).await.is_some() {
            self.note_all();
        }
    }
}

/// Of all choices.
pub(super) fn arrivals(mailboxes: &[Arc<Mailbox>]) -> Arrivals {
    let mut all = Arrivals::default();
    mailboxes.iter().for_each(|mailbox| all.add(&mailbox.arrivals()));
    all
}

impl Live {
    fn note(&mut self) {
        let Some(record) = &mut self.record else { return };
        let tokens = self.mailboxes.iter().map(|mailbox| mailbox.tokens()).sum();
        if tokens > self.noted_tokens {
            record.progress(&arrivals(&self.mailboxes));
            self.noted_tokens = tokens;
        }
    }
}

impl WatchedRecord {
    pub(super) fn request(&self) -> RequestId {
        self.request
    }

    /// Another replica has it from now on. An attempt before it got no token.
    pub(super) fn attempt(&self, worker: WorkerId, mailboxes: &[Arc<Mailbox>]) {
        let mut live = self.live.lock();
        live.mailboxes = mailboxes.to_vec();
        if let Some(record) = &mut live.record {
            record.charge_mut().replicas.push(worker);
        }
    }

    /// Writes the record; it is noted no more.
    pub(super) fn close(self, ending: &Ending) -> Counts {
        let record = self.live.lock().record.take();
        record.expect("taken only here, which consumes the only owner").close(ending)
    }
}

impl Drop for WatchedRecord {
    fn drop(&mut self) {
        self.board.running.lock().remove(&self.request);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use prometheus_client::metrics::histogram::Histogram;
    use weir_schemas::records::{ChargeRecord, FinishReason};
    use weir_schemas::rpc::step_message::Update;

    use super::*;
    use crate::record::testing::{charge, open, recorder, written};

    fn arrive(mailbox: &Mailbox, tokens: usize) {
        let tokens = &vec![1; tokens];
        let update = Update { tokens, cached_prompt_tokens: Some(16), ..Update::default() };
        mailbox.deliver(update, Instant::now());
    }

    #[test]
    fn what_came_is_noted_though_nobody_takes_it_and_a_crash_charges_it() {
        let directory = tempfile::tempdir().unwrap();
        let worker = WorkerId::from_u128(7);
        {
            let (recorder, _) = recorder(&directory);
            let board = Arc::new(ProgressBoard::default());
            let mailbox = Arc::new(Mailbox::new(Histogram::new([1.0]), Arc::default(), None, None));
            let stalled = board.watch(open(&recorder, 1, charge()));
            stalled.attempt(worker, std::slice::from_ref(&mailbox));
            arrive(&mailbox, 3);
            board.note_all();
            arrive(&mailbox, 2);
            board.note_all();
            // After the last note: lost with the process.
            arrive(&mailbox, 1);
            assert_eq!(board.running(), 1);
            drop(stalled);
            assert_eq!(board.running(), 0);
        }
        let (again, unclosed) = recorder(&directory);
        again.close_recovered(unclosed);
        let data = written(&again).remove(0).data;
        assert_eq!((data.generated_tokens, data.cached_prompt_tokens, data.recovered), (5, 16, true));
        assert_eq!(data.replicas, [worker]);
    }

    #[test]
    fn a_closed_one_is_noted_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let (recorder, _) = recorder(&directory);
        let board = Arc::new(ProgressBoard::default());
        let mailbox = Arc::new(Mailbox::new(Histogram::new([1.0]), Arc::default(), None, None));
        let record = board.watch(open(&recorder, 1, charge()));
        record.attempt(WorkerId::from_u128(7), std::slice::from_ref(&mailbox));
        arrive(&mailbox, 4);
        let ending = Ending { reason: FinishReason::Stop, finished: None, arrivals: mailbox.arrivals() };
        assert_eq!(record.close(&ending).generated_tokens, 4);
        board.note_all();
        let records: Vec<ChargeRecord> = written(&recorder);
        assert_eq!((records.len(), records[0].data.cached_prompt_tokens), (1, 16));
    }
}
