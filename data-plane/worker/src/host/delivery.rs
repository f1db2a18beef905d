//! What steps gave, on its way out: their records are written, then the gateways are told. A thread of its own beside the
//! step loop's, so that the loop waits for no file: now and then a write takes as long as several steps.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use foldhash::fast::FixedState;
use weir_engine::SequenceId;
use weir_schemas::records::ExecutionOutcome;
use weir_schemas::rpc::worker::StepMessage;

use super::spawn_guarded;
use crate::execution::{OpenExecution, Used};
use crate::session::Session;

/// Steps that may wait to be delivered. A disk that stands still then holds the step loop back, and memory stays bounded.
const PARCELS_MAX: usize = 64;
/// A message begins with room for so many sequences, which spares the first few of its growths.
const UPDATES: usize = 32;

/// What is to be recorded, in order, and then said: one message for each session.
#[derive(Default)]
pub(super) struct Parcel {
    notes: Vec<Note>,
    messages: HashMap<u64, (Arc<Session>, StepMessage), FixedState>,
}

/// Something for the execution log.
pub(super) enum Note {
    /// The engine has it: its records come from here on.
    Opened(SequenceId, OpenExecution),
    Progress(SequenceId, Used),
    /// It is over, and so is its handle in the session.
    Closed(SequenceId, Used, ExecutionOutcome, (Arc<Session>, u64)),
    /// The engine does not have it.
    Refused(OpenExecution, ExecutionOutcome, (Arc<Session>, u64)),
}

impl Parcel {
    pub(super) fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// What is to be said to a session.
    pub(super) fn message_to(&mut self, session: &Arc<Session>) -> &mut StepMessage {
        let message = self.messages.entry(session.id);
        &mut message.or_insert_with(|| (session.clone(), StepMessage::for_updates(UPDATES))).1
    }

    fn is_empty(&self) -> bool {
        self.notes.is_empty() && self.messages.is_empty()
    }
}

enum Item {
    Parcel(Parcel),
    /// Answered when all before it is out.
    Flush(SyncSender<()>),
}

/// The step loop's end. Dropped, it waits until everything is out.
pub(super) struct Delivery {
    items: Option<SyncSender<Item>>,
    thread: Option<JoinHandle<()>>,
}

impl Delivery {
    pub(super) fn start(name: &str) -> std::io::Result<Self> {
        let (items, receiver) = sync_channel(PARCELS_MAX);
        let thread = spawn_guarded(format!("deliver-{name}"), move || deliver(&receiver))?;
        Ok(Self { items: Some(items), thread: Some(thread) })
    }

    pub(super) fn hand_over(&self, parcel: Parcel) {
        if !parcel.is_empty() {
            self.send(Item::Parcel(parcel));
        }
    }

    /// Waits until everything that was handed over is out.
    pub(super) fn flush(&self) {
        let (flushed, wait) = sync_channel(1);
        self.send(Item::Flush(flushed));
        let answer = wait.recv();
        debug_assert!(answer.is_ok(), "the thread outlives its channel");
    }

    fn send(&self, item: Item) {
        // The thread ends with the process or after this.
        drop(self.items.as_ref().map(|items| items.send(item)));
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.items = None;
        drop(self.thread.take().map(JoinHandle::join));
    }
}

fn deliver(items: &Receiver<Item>) {
    let mut open: HashMap<SequenceId, OpenExecution, FixedState> = HashMap::default();
    while let Ok(item) = items.recv() {
        let Parcel { notes, messages } = match item {
            Item::Parcel(parcel) => parcel,
            Item::Flush(answer) => {
                let heard = answer.send(());
                debug_assert!(heard.is_ok(), "who asked waits for it");
                continue;
            }
        };
        // The records first: what a gateway is told must survive this process.
        for note in notes {
            match note {
                Note::Opened(id, execution) => drop(open.insert(id, execution)),
                Note::Progress(id, used) => {
                    if let Some(execution) = open.get_mut(&id) {
                        execution.progress(used);
                    }
                }
                Note::Closed(id, used, outcome, (session, handle)) => {
                    if let Some(execution) = open.remove(&id) {
                        execution.close(used, outcome);
                    }
                    session.finished(handle);
                }
                Note::Refused(execution, outcome, (session, handle)) => {
                    execution.close(Used::default(), outcome);
                    session.finished(handle);
                }
            }
        }
        for (session, message) in messages.into_values() {
            session.send(message);
        }
    }
}
