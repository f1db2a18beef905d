//! What steps gave, on its way out: their records are written, then the gateways are told. A thread of its own beside the
//! step loop's, so that the loop waits for no file: now and then a write takes as long as several steps.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use foldhash::fast::FixedState;
use parking_lot::{Condvar, Mutex};
use weir_engine::SequenceId;

use super::parcel::{Note, Parcel};
use super::spawn_guarded;
use crate::execution::{OpenExecution, Used};

/// Steps that may wait to be delivered. A disk that stands still then holds the step loop back, and memory stays bounded.
const PARCELS_MAX: usize = 64;
/// With nothing more to deliver the thread looks again after this long before it waits to be woken. Waking it costs the
/// step loop some microseconds: so while steps follow each other more quickly than this, nobody has to.
const NAP: Duration = Duration::from_micros(50);

/// The step loop's end. Dropped, it waits until everything is out.
pub(super) struct Delivery {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// There are parcels again, or the last has come, for a thread that is asleep.
    more: Condvar,
    /// All that was in the queue is taken.
    taken: Condvar,
}

#[derive(Default)]
struct State {
    parcels: VecDeque<Parcel>,
    /// The thread delivers what it took.
    is_delivering: bool,
    is_asleep: bool,
    is_closed: bool,
}

impl Delivery {
    pub(super) fn start(name: &str) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let source = queue.clone();
        let thread = spawn_guarded(format!("deliver-{name}"), move || deliver(&source))?;
        Ok(Self { queue, thread: Some(thread) })
    }

    /// Takes all that is in the parcel. Waits only if far too much waits already.
    pub(super) fn hand_over(&self, parcel: &mut Parcel) {
        if parcel.is_empty() {
            return;
        }
        let mut state = self.queue.state.lock();
        self.queue.taken.wait_while(&mut state, |state| state.parcels.len() >= PARCELS_MAX);
        state.parcels.push_back(parcel.take());
        self.wake(&mut state);
    }

    /// Waits until everything that was handed over is out.
    pub(super) fn flush(&self) {
        let mut state = self.queue.state.lock();
        self.queue.taken.wait_while(&mut state, |state| state.is_delivering || !state.parcels.is_empty());
    }

    fn wake(&self, state: &mut State) {
        if std::mem::take(&mut state.is_asleep) {
            self.queue.more.notify_one();
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.is_closed = true;
        self.wake(&mut state);
        drop(state);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

impl Queue {
    /// All that waits, oldest first; waits for it. `None` at the end.
    fn take(&self) -> Option<VecDeque<Parcel>> {
        let mut state = self.state.lock();
        state.is_delivering = false;
        self.taken.notify_all();
        if state.parcels.is_empty() && !state.is_closed {
            drop(state);
            std::thread::sleep(NAP);
            state = self.state.lock();
            while state.parcels.is_empty() && !state.is_closed {
                state.is_asleep = true;
                self.more.wait(&mut state);
            }
        }
        state.is_delivering = true;
        let parcels = std::mem::take(&mut state.parcels);
        self.taken.notify_all();
        if parcels.is_empty() { None } else { Some(parcels) }
    }
}

fn deliver(queue: &Queue) {
    let mut open: HashMap<SequenceId, OpenExecution, FixedState> = HashMap::default();
    while let Some(parcels) = queue.take() {
        for Parcel { notes, messages, .. } in parcels {
            // The records first: what a gateway is told must survive this process.
            for note in notes {
                write(note, &mut open);
            }
            for (session, message) in messages {
                session.send(message);
            }
        }
    }
}

fn write(note: Note, open: &mut HashMap<SequenceId, OpenExecution, FixedState>) {
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
