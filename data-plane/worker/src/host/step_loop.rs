//! The owner thread of one engine: take arrivals, step, hand over what is to be recorded and said, repeat. It parks when
//! there is nothing to do and never waits for a gateway, a file or the network.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use foldhash::fast::FixedState;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use weir_engine::engine::Engine;
use weir_engine::{AddError, EngineError, Executor, SequenceEvent, SequenceId, StepReport};
use weir_schemas::records::{ExecutionOutcome, PROGRESS_NOTE_INTERVAL};
use weir_schemas::rpc::step_message::Update;
use weir_schemas::rpc::worker as wire;
use weir_text::TextModel;

use super::attempt::{Arrival, Attempt, NewAttempt, refusal};
use super::delivery::{Delivery, Note, Parcel};
use super::step_clock::{StepClock, StepTime, Timed};
use super::text_commit::text_commit;
use super::{ARRIVALS_MAX, EngineHandle, EngineStatus, Rates, spawn_guarded};
use crate::metrics::EngineMetrics;
use crate::session::CancelQueue;

struct StepLoop<X: Executor> {
    engine: Engine<Timed<X>>,
    clock: StepClock,
    text: Arc<TextModel>,
    arrivals: mpsc::Receiver<Box<NewAttempt>>,
    attempts: HashMap<SequenceId, Attempt, FixedState>,
    cancelled: CancelQueue,
    rates: Rates,
    metrics: EngineMetrics,
    progress_recorded: Instant,
    /// Set when the device is lost and the records are closed.
    device_lost: CancellationToken,
    /// Of this turn, not handed over yet.
    parcel: Parcel,
    delivery: Delivery,
    /// Last, so that it is dropped last.
    status: watch::Sender<EngineStatus>,
}

/// Starts the owner thread.
pub(crate) fn spawn<X: Executor + 'static>(
    engine: Engine<Timed<X>>,
    clock: StepClock,
    text: Arc<TextModel>,
    name: &str,
    metrics: EngineMetrics,
    device_lost: CancellationToken,
) -> std::io::Result<EngineHandle> {
    let (arrivals, receiver) = mpsc::channel(ARRIVALS_MAX);
    let now = clock.now();
    let status = EngineStatus {
        load: engine.load(),
        counters: *engine.counters(),
        rates: Rates::default(),
        attempts: 0,
        advanced: now,
    };
    let (publisher, status) = watch::channel(status);
    let handle = EngineHandle { arrivals, status, capacity: *engine.capacity(), text: text.clone() };
    let step_loop = StepLoop {
        engine,
        clock,
        text,
        arrivals: receiver,
        status: publisher,
        attempts: HashMap::default(),
        cancelled: CancelQueue::default(),
        rates: Rates::default(),
        metrics,
        progress_recorded: now,
        device_lost,
        parcel: Parcel::default(),
        delivery: Delivery::start(name)?,
    };
    // Detached: its end shows in the status channel, which closes after everything that the loop owned is freed.
    spawn_guarded(format!("step-{name}"), move || step_loop.run())?;
    Ok(handle)
}

impl<X: Executor> StepLoop<X> {
    fn run(mut self) {
        loop {
            // Without an attempt there may still be rows in flight of sequences that ended: they hold pages.
            if self.attempts.is_empty() && !self.engine.has_work() {
                // Whoever reads that nothing is left may end the sessions.
                self.delivery.flush();
                self.publish();
                self.clock.rest();
                match self.arrivals.blocking_recv() {
                    Some(attempt) => self.add(*attempt),
                    None => return,
                }
            }
            // As many as can have gathered; a sender faster than this must not keep the engine from stepping.
            for _ in 0..ARRIVALS_MAX {
                match self.arrivals.try_recv() {
                    Ok(attempt) => self.add(*attempt),
                    Err(_) => break,
                }
            }
            for id in self.cancelled.take() {
                self.engine.cancel(id);
            }
            if let Err(error) = self.step() {
                return self.lose_device(&error);
            }
            self.note_progress();
            self.delivery.hand_over(std::mem::take(&mut self.parcel));
            if !self.attempts.is_empty() {
                self.publish();
            }
        }
    }

    fn add(&mut self, attempt: NewAttempt) {
        let NewAttempt { session, handle, cancel, execution, request, stop } = attempt;
        let (commit, shown) = text_commit(self.text.clone(), &request.prompt, stop);
        match self.engine.add(request, Box::new(commit)) {
            Ok(id) => {
                session.included(handle);
                cancel.taken(&self.cancelled, id);
                let arrival = Arrival { at: execution.arrived(), prompt_tokens: execution.prompt_tokens() };
                self.parcel.note(Note::Opened(id, execution));
                self.attempts.insert(id, Attempt::new(session, handle, arrival, shown));
            }
            Err(error) => {
                let finished = refusal(execution.prompt_tokens(), refusal_reason(&error), error.to_string());
                let update = Update { handle, finished: Some(&finished), ..Update::default() };
                self.parcel.message_to(&session).push(update);
                let outcome = ExecutionOutcome::Refused;
                self.parcel.note(Note::Refused(execution, outcome, (session, handle)));
            }
        }
    }

    /// # Errors
    /// What no later step can succeed after.
    fn step(&mut self) -> Result<(), EngineError> {
        if !self.engine.has_work() {
            return Ok(());
        }
        let report = self.engine.step();
        let measured = self.clock.take();
        if let Some(host) = measured.host {
            self.metrics.host(host);
        }
        match report {
            Ok(report) => self.deliver(report, measured.step),
            Err(error) if error.is_fatal() => return Err(error),
            // The sequences of the step end with the next report; others are untouched.
            Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "a step failed"),
        }
        Ok(())
    }

    /// Closes the record of everything that runs or waits here. Nobody is told how it ended: the process ends its streams
    /// once this is done, and gateways go on elsewhere.
    fn lose_device(mut self, error: &EngineError) {
        tracing::error!(error = error as &dyn std::error::Error, "the device is lost; ending the process");
        for event in self.engine.fail_all().events {
            let SequenceEvent::Finished { id, reason, usage } = event else { continue };
            if let Some(attempt) = self.attempts.remove(&id) {
                let (used, outcome, _) = attempt.end(reason, usage);
                self.parcel.note(Note::Closed(id, used, outcome, (attempt.session, attempt.handle)));
            }
        }
        self.arrivals.close();
        while let Some(attempt) = self.arrivals.blocking_recv() {
            let NewAttempt { session, handle, execution, .. } = *attempt;
            self.parcel.note(Note::Refused(execution, ExecutionOutcome::Error, (session, handle)));
        }
        self.delivery.hand_over(std::mem::take(&mut self.parcel));
        self.delivery.flush();
        self.device_lost.cancel();
        self.publish();
        // A device that hangs would never give its memory back.
        std::mem::forget(self.engine);
    }

    /// `step` is when what the report tells of ran; none if it tells of no step.
    fn deliver(&mut self, report: StepReport, step: Option<StepTime>) {
        if let Some(step) = step {
            self.attribute(&report, step);
        }
        let now = step.map_or_else(|| self.clock.now(), |step| step.ended);
        // Of one sequence: its events of one step follow each other.
        let mut tokens = Vec::new();
        let mut events = report.events.into_iter().peekable();
        while let Some(event) = events.next() {
            match event {
                SequenceEvent::Token { id, token, .. } => {
                    let Some(attempt) = self.attempts.get_mut(&id) else { continue };
                    attempt.token(now);
                    tokens.push(token);
                    if events.peek().is_none_or(|next| next.id() != id) {
                        let message = self.parcel.message_to(&attempt.session);
                        attempt.update(&tokens, message);
                        tokens.clear();
                    }
                }
                SequenceEvent::Finished { id, reason, usage } => {
                    let Some(mut attempt) = self.attempts.remove(&id) else { continue };
                    let (used, outcome, finished) = attempt.end(reason, usage);
                    self.metrics.finished(&finished);
                    attempt.last_update(&tokens, &finished, self.parcel.message_to(&attempt.session));
                    tokens.clear();
                    self.parcel.note(Note::Closed(id, used, outcome, (attempt.session, attempt.handle)));
                }
            }
        }
    }

    /// Each sequence of a step is due the share of its time that it has of its tokens.
    fn attribute(&mut self, report: &StepReport, step: StepTime) {
        let elapsed = step.elapsed();
        self.rates.observe(report.prefill_tokens, report.decode_tokens, elapsed);
        self.metrics.step(report, elapsed);
        let total: u32 = report.computed.iter().map(|&(_, tokens)| tokens).sum();
        let share_of_token = elapsed / total.max(1);
        for &(id, tokens) in &report.computed {
            if let Some(attempt) = self.attempts.get_mut(&id) {
                attempt.computed(tokens, step.started, share_of_token * tokens);
            }
        }
    }

    fn note_progress(&mut self) {
        let now = self.clock.now();
        if now.saturating_duration_since(self.progress_recorded) >= PROGRESS_NOTE_INTERVAL {
            for (&id, attempt) in &self.attempts {
                self.parcel.note(Note::Progress(id, attempt.progress()));
            }
            self.progress_recorded = now;
        }
    }

    fn publish(&mut self) {
        let status = EngineStatus {
            load: self.engine.load(),
            counters: *self.engine.counters(),
            rates: self.rates,
            attempts: self.attempts.len(),
            advanced: self.clock.now(),
        };
        self.metrics.load(&status);
        self.status.send_replace(status);
    }
}

fn refusal_reason(error: &AddError) -> wire::FinishReason {
    match error {
        AddError::QueueFull => wire::FinishReason::RefusedFull,
        AddError::NeverFits { .. } => wire::FinishReason::RefusedNeverFits,
        AddError::EmptyPrompt
        | AddError::NoOutput
        | AddError::UnknownToken { .. }
        | AddError::InvalidSampling(_)
        | AddError::ContextLength { .. } => wire::FinishReason::RefusedInvalid,
    }
}
