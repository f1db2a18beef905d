//! The owner thread of one engine: take arrivals, step, tell the sessions, repeat. It parks when there is nothing to
//! do and never waits for a gateway, a disk flush or the network.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use weir_engine::engine::Engine;
use weir_engine::{AddError, EngineError, Executor, SequenceEvent, SequenceId, StepReport};
use weir_schemas::records::{ExecutionOutcome, PROGRESS_NOTE_INTERVAL};
use weir_schemas::rpc::worker as wire;
use weir_text::TextModel;

use super::attempt::{Attempt, NewAttempt, refusal};
use super::step_clock::{StepClock, StepTime, Timed};
use super::text_commit::text_commit;
use super::{ARRIVALS_MAX, EngineHandle, EngineStatus, Rates};
use crate::execution::Used;
use crate::metrics::EngineMetrics;
use crate::session::Session;

struct StepLoop<X: Executor> {
    engine: Engine<Timed<X>>,
    clock: StepClock,
    text: Arc<TextModel>,
    arrivals: mpsc::Receiver<Box<NewAttempt>>,
    attempts: HashMap<SequenceId, Attempt>,
    rates: Rates,
    metrics: EngineMetrics,
    progress_recorded: Instant,
    /// Set when the device is lost and the records are closed.
    device_lost: CancellationToken,
    /// Last, so that it is dropped last.
    status: watch::Sender<EngineStatus>,
}

/// Starts the owner thread. A panic in it ends the process: what the loop owned is in an unknown state, the gateways
/// fail over, and the next start closes the records.
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
        attempts: HashMap::new(),
        rates: Rates::default(),
        metrics,
        progress_recorded: now,
        device_lost,
    };
    // Detached: its end shows in the status channel, which closes after everything that the loop owned is freed.
    std::thread::Builder::new().name(format!("step-{name}")).spawn(move || {
        let bomb = AbortOnPanic;
        step_loop.run();
        std::mem::forget(bomb);
    })?;
    Ok(handle)
}

/// Dropped only while its thread unwinds.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        tracing::error!("the step loop panicked; ending the process");
        std::process::abort();
    }
}

impl<X: Executor> StepLoop<X> {
    fn run(mut self) {
        loop {
            // Without an attempt there may still be rows in flight of sequences that ended: they hold pages.
            if self.attempts.is_empty() && !self.engine.has_work() {
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
            self.cancel_unwanted();
            if let Err(error) = self.step() {
                return self.lose_device(&error);
            }
            self.record_progress();
            self.publish();
        }
    }

    fn add(&mut self, attempt: NewAttempt) {
        let NewAttempt { session, handle, cancelled, execution, request, stop } = attempt;
        let (commit, shown) = text_commit(self.text.clone(), &request.prompt, stop);
        match self.engine.add(request, Box::new(commit)) {
            Ok(id) => {
                session.included(handle);
                self.attempts.insert(id, Attempt::new(session, handle, cancelled, execution, shown));
            }
            Err(error) => {
                let prompt_tokens = execution.prompt_tokens();
                execution.close(Used::default(), ExecutionOutcome::Refused);
                session.finished(handle);
                session.send(vec![refusal(handle, prompt_tokens, refusal_reason(&error), error.to_string())]);
            }
        }
    }

    fn cancel_unwanted(&mut self) {
        for (&id, attempt) in &self.attempts {
            if attempt.is_unwanted() {
                self.engine.cancel(id);
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
                attempt.session.finished(attempt.handle);
                drop(attempt.finish(reason, usage));
            }
        }
        self.arrivals.close();
        while let Some(attempt) = self.arrivals.blocking_recv() {
            let NewAttempt { session, handle, execution, .. } = *attempt;
            execution.close(Used::default(), ExecutionOutcome::Error);
            session.finished(handle);
        }
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
        let mut messages = Messages::default();
        for event in report.events {
            match event {
                SequenceEvent::Token { id, token, .. } => {
                    if let Some(attempt) = self.attempts.get_mut(&id) {
                        attempt.token(token, now);
                        messages.dirty.push(id);
                    }
                }
                SequenceEvent::Finished { id, reason, usage } => {
                    if let Some(attempt) = self.attempts.remove(&id) {
                        let session = attempt.session.clone();
                        session.finished(attempt.handle);
                        let update = attempt.finish(reason, usage);
                        if let Some(finished) = &update.finished {
                            self.metrics.finished(finished);
                        }
                        messages.push(session, update);
                    }
                }
            }
        }
        for id in std::mem::take(&mut messages.dirty) {
            if let Some(attempt) = self.attempts.get_mut(&id)
                && let Some(update) = attempt.update()
            {
                messages.push(attempt.session.clone(), update);
            }
        }
        messages.send();
    }

    /// Each sequence of a step is due the share of its time that it has of its tokens.
    fn attribute(&mut self, report: &StepReport, step: StepTime) {
        let elapsed = step.elapsed();
        self.rates.observe(report.prefill_tokens, report.decode_tokens, elapsed);
        self.metrics.step(report, elapsed);
        let total: u32 = report.computed.iter().map(|&(_, tokens)| tokens).sum();
        for &(id, tokens) in &report.computed {
            if let Some(attempt) = self.attempts.get_mut(&id) {
                let share = elapsed.mul_f64(f64::from(tokens) / f64::from(total.max(1)));
                attempt.computed(tokens, step.started, share);
            }
        }
    }

    fn record_progress(&mut self) {
        let now = self.clock.now();
        if now.saturating_duration_since(self.progress_recorded) >= PROGRESS_NOTE_INTERVAL {
            for attempt in self.attempts.values_mut() {
                attempt.record_progress();
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

/// One message for each session and step.
#[derive(Default)]
struct Messages {
    by_session: HashMap<u64, (Arc<Session>, Vec<wire::SequenceUpdate>)>,
    dirty: Vec<SequenceId>,
}

impl Messages {
    fn push(&mut self, session: Arc<Session>, update: wire::SequenceUpdate) {
        self.by_session.entry(session.id).or_insert_with(|| (session, Vec::new())).1.push(update);
    }

    fn send(self) {
        for (session, updates) in self.by_session.into_values() {
            session.send(updates);
        }
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
