//! What steps gave, on its way out: their records are written, then the gateways are told. A thread of its own beside the
//! step loop's, so that the loop waits for no file: now and then a write takes as long as several steps.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use foldhash::fast::FixedState;
use parking_lot::{Condvar, Mutex};
use weir_schemas::records::ExecutionOutcome;

use super::attempt::{AttemptKey, ChoiceKey};
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
    let mut open: HashMap<AttemptKey, Recorded, FixedState> = HashMap::default();
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

/// The record of an attempt while its choices run.
struct Recorded {
    execution: OpenExecution,
    /// By choice.
    used: Vec<Used>,
    /// Choices that are not over.
    left: usize,
    outcome: ExecutionOutcome,
}

impl Recorded {
    /// Of all choices. The prompt counts once, as the first of them had it.
    fn used(&self) -> Used {
        let mut total = self.used.first().copied().unwrap_or_default();
        for choice in self.used.iter().skip(1) {
            total.generated_tokens += choice.generated_tokens;
            total.preemptions += choice.preemptions;
            total.decode_us = total.decode_us.max(choice.decode_us);
            total.device_us += choice.device_us;
        }
        total
    }

    fn set(&mut self, choice: usize, used: Used) {
        if let Some(of_choice) = self.used.get_mut(choice) {
            *of_choice = used;
        }
    }
}

fn write(note: Note, open: &mut HashMap<AttemptKey, Recorded, FixedState>) {
    match note {
        Note::Opened(key, execution, choices) => {
            let used = vec![Used::default(); choices];
            let recorded = Recorded { execution, used, left: choices, outcome: ExecutionOutcome::Stop };
            open.insert(key, recorded);
        }
        Note::Progress(ChoiceKey { attempt, choice }, used) => {
            if let Some(recorded) = open.get_mut(&attempt) {
                recorded.set(choice, used);
                recorded.execution.progress(recorded.used());
            }
        }
        Note::Closed(ChoiceKey { attempt, choice }, used, outcome, (session, handle)) => {
            if let Entry::Occupied(mut entry) = open.entry(attempt) {
                let recorded = entry.get_mut();
                recorded.set(choice, used);
                recorded.left -= 1;
                // An error of one choice stays the attempt's.
                if recorded.outcome != ExecutionOutcome::Error {
                    recorded.outcome = outcome;
                }
                if recorded.left == 0 {
                    let recorded = entry.remove();
                    let used = recorded.used();
                    recorded.execution.close(used, recorded.outcome);
                }
            }
            session.finished(handle);
        }
        Note::Refused(execution, outcome, (session, handles)) => {
            execution.close(Used::default(), outcome);
            handles.into_iter().for_each(|handle| session.finished(handle));
        }
    }
}
