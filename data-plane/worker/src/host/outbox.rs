//! Where the engine tells what became of attempts: what is to be said to gateways and recorded goes into the parcel of
//! this turn of the step loop, with the time that each attempt had of the device.

use weir_engine::{Advance, FinishReason, SequenceId, SequenceUsage, Sink};

use super::Rates;
use super::attempt::Attempt;
use super::parcel::{Note, Parcel};
use super::step_clock::{Measured, StepClock, StepTime};
use crate::metrics::EngineMetrics;

pub(super) struct Outbox {
    pub(super) clock: StepClock,
    pub(super) metrics: EngineMetrics,
    pub(super) rates: Rates,
    /// Of this turn, not handed over yet.
    pub(super) parcel: Parcel,
    /// Of the latest step that was collected, until it is asked for.
    measured: Measured,
    /// When that step ran.
    step: StepTime,
    /// What of its time is due to each of its tokens, in nanoseconds.
    share_ns: u64,
}

impl Outbox {
    pub(super) fn new(clock: StepClock, metrics: EngineMetrics) -> Self {
        let now = clock.now();
        Self {
            clock,
            metrics,
            rates: Rates::default(),
            parcel: Parcel::default(),
            measured: Measured::default(),
            step: StepTime { started: now, ended: now },
            share_ns: 0,
        }
    }

    /// What was measured since the last call.
    pub(super) fn measured(&mut self) -> Measured {
        std::mem::take(&mut self.measured)
    }
}

impl Sink<Attempt> for Outbox {
    fn collected(&mut self, num_tokens: u32) {
        self.measured = self.clock.take();
        if let Some(step) = self.measured.step {
            self.step = step;
        }
        // Each sequence of a step is due the share of its time that it has of its tokens.
        let step_ns = u64::try_from(self.step.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.share_ns = step_ns / u64::from(num_tokens.max(1));
    }

    fn advanced(&mut self, _id: SequenceId, attempt: &mut Attempt, advance: Advance<'_>) {
        attempt.computed(advance.computed, self.step.started, self.share_ns * u64::from(advance.computed));
        if !advance.tokens.is_empty() {
            let message = self.parcel.message_to(&attempt.session, &mut attempt.place);
            attempt.tokens(advance.tokens, advance.logprobs, self.step.ended, message);
        }
    }

    fn finished(
        &mut self,
        _id: SequenceId,
        mut attempt: Attempt,
        reason: FinishReason,
        usage: SequenceUsage,
    ) {
        let (used, outcome, finished) = attempt.end(reason, usage);
        self.metrics.finished(&finished);
        if matches!(reason, FinishReason::Stop | FinishReason::Length) {
            self.rates.answered(usage.generated_tokens);
        }
        let message = self.parcel.message_to(&attempt.session, &mut attempt.place);
        attempt.last_words(&finished, message);
        self.parcel.note(Note::Closed(attempt.key, used, outcome, (attempt.session, attempt.handle)));
    }
}

/// Records that attempts are over, and tells nobody: what becomes of them when the device is lost.
pub(super) struct Silent<'a>(pub(super) &'a mut Parcel);

impl Sink<Attempt> for Silent<'_> {
    fn advanced(&mut self, _id: SequenceId, _attempt: &mut Attempt, _advance: Advance<'_>) {}

    fn finished(&mut self, _id: SequenceId, attempt: Attempt, reason: FinishReason, usage: SequenceUsage) {
        let (used, outcome, _) = attempt.end(reason, usage);
        self.0.note(Note::Closed(attempt.key, used, outcome, (attempt.session, attempt.handle)));
    }
}
