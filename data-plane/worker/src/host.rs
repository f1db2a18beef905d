//! Engines in this process: one owner thread for each loaded version ([`step_loop`]), which everyone else reaches by
//! a bounded channel of arrivals and sees through a status that it publishes, and one that carries out what it gives
//! ([`delivery`]). Masks of constrained rows are made on threads beside it ([`mask_pool`]).

mod answer_text;
mod attempt;
mod busy;
mod constraint;
mod delivery;
mod mask_pool;
mod outbox;
mod parcel;
mod rates;
mod step_clock;
mod step_loop;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use weir_engine::{Capacity, EngineCounters, EngineLoad};

pub(crate) use attempt::{NewAttempt, NewChoice, refusal};
pub(crate) use busy::Busy;
pub(crate) use rates::Rates;
pub(crate) use step_clock::timed;
pub(crate) use step_loop::spawn;

/// Requests that may wait for a step to end; senders then wait, so a gateway's stream is held back by its own flow
/// control. Larger than any burst that a step's length can gather from a few gateways.
pub(crate) const ARRIVALS_MAX: usize = 256;

/// What a step loop shows of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EngineStatus {
    pub(crate) load: EngineLoad,
    pub(crate) counters: EngineCounters,
    pub(crate) rates: Rates,
    pub(crate) busy: Busy,
    /// When the loop last did something, or went to sleep for lack of work.
    pub(crate) advanced: Instant,
}

/// How to reach a loaded version's step loop. The loop ends when the last handle is dropped and its work is done.
#[derive(Debug, Clone)]
pub(crate) struct EngineHandle {
    pub(crate) arrivals: mpsc::Sender<Box<NewAttempt>>,
    pub(crate) status: watch::Receiver<EngineStatus>,
    pub(crate) capacity: Capacity,
    pub(crate) text: Arc<weir_text::TextModel>,
}

/// Starts a thread of an engine. A panic in it ends the process: what it owned is in an unknown state, the gateways fail
/// over, and the next start closes the records.
fn spawn_guarded(name: String, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(move || {
        let bomb = AbortOnPanic;
        run();
        std::mem::forget(bomb);
    })
}

/// Dropped only while its thread unwinds.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        tracing::error!("a thread of an engine panicked; ending the process");
        std::process::abort();
    }
}
