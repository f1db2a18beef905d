//! When each step ran, told from outside the engine, at its seam with the device: neither of them knows a clock.
//!
//! With two steps in flight, how long the host waits for one says little of how long it took. A step has the device from
//! when its submission is in, or from when the one before it is collected if that is later, until it is collected itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weir_engine::{Capacity, Executor, ExecutorError, StepOutput, StepPlan, Ticket, TokenMask};

/// When a step had the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepTime {
    pub(crate) started: Instant,
    pub(crate) ended: Instant,
}

impl StepTime {
    pub(crate) fn elapsed(&self) -> Duration {
        self.ended.saturating_duration_since(self.started)
    }
}

/// What was measured since it was last asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    /// Of the step that was collected.
    pub(crate) step: Option<StepTime>,
    /// From the collect before a submission to when that submission was in: what a device with nothing else in flight
    /// was idle.
    pub(crate) host: Option<Duration>,
}

/// The step loop's end.
pub(crate) struct StepClock(Arc<Mutex<Stamps>>);

/// The engine's end: an executor whose steps are measured. The lock is never contended: both ends live on the owner
/// thread.
pub(crate) struct Timed<X> {
    executor: X,
    stamps: Arc<Mutex<Stamps>>,
}

struct Stamps {
    now: Box<dyn Fn() -> Instant + Send>,
    /// When the submission of each step in flight was in, oldest first.
    submitted: VecDeque<Instant>,
    collected: Option<Instant>,
    /// The same, until a submission follows.
    host_since: Option<Instant>,
    measured: Measured,
}

/// Both ends.
pub(crate) fn timed<X: Executor>(
    executor: X,
    now: impl Fn() -> Instant + Send + 'static,
) -> (Timed<X>, StepClock) {
    let stamps = Stamps {
        now: Box::new(now),
        submitted: VecDeque::new(),
        collected: None,
        host_since: None,
        measured: Measured::default(),
    };
    let stamps = Arc::new(Mutex::new(stamps));
    (Timed { executor, stamps: stamps.clone() }, StepClock(stamps))
}

impl StepClock {
    pub(crate) fn now(&self) -> Instant {
        (self.0.lock().now)()
    }

    /// What was measured since the last call.
    pub(crate) fn take(&self) -> Measured {
        std::mem::take(&mut self.0.lock().measured)
    }

    /// The loop sleeps for lack of work: the time to the next submission is nobody's.
    pub(crate) fn rest(&self) {
        self.0.lock().host_since = None;
    }
}

impl<X: Executor> Executor for Timed<X> {
    fn capacity(&self) -> Capacity {
        self.executor.capacity()
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        let ticket = self.executor.submit(plan)?;
        let stamps = &mut *self.stamps.lock();
        let submitted = (stamps.now)();
        stamps.submitted.push_back(submitted);
        if let Some(since) = stamps.host_since.take() {
            stamps.measured.host = Some(submitted.saturating_duration_since(since));
        }
        Ok(ticket)
    }

    fn supply_masks(&mut self, ticket: Ticket, masks: Vec<Option<TokenMask>>) -> Result<(), ExecutorError> {
        self.executor.supply_masks(ticket, masks)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        let output = self.executor.collect(ticket);
        let stamps = &mut *self.stamps.lock();
        let ended = (stamps.now)();
        if let Some(submitted) = stamps.submitted.pop_front() {
            let started = stamps.collected.map_or(submitted, |before| before.max(submitted));
            stamps.measured.step = Some(StepTime { started, ended });
        }
        stamps.collected = Some(ended);
        stamps.host_since = Some(ended);
        output
    }

    fn host_page(&mut self, page: u32) -> &mut [u8] {
        self.executor.host_page(page)
    }
}

impl std::fmt::Debug for StepClock {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("StepClock")
    }
}

impl<X> std::fmt::Debug for Timed<X> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Timed")
    }
}
