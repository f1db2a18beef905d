//! The owner thread of one engine: take arrivals, step, hand over what is to be recorded and said, repeat. It parks when
//! there is nothing to do, and waits for files and gateways only where far more than they can take is on its way to them.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use weir_engine::engine::Engine;
use weir_engine::{AddError, EngineError, Executor, SequenceId};
use weir_schemas::records::{ExecutionOutcome, PROGRESS_NOTE_INTERVAL};
use weir_schemas::rpc::step_message::Update;
use weir_schemas::rpc::worker as wire;
use weir_text::TextModel;

use super::answer_text::AnswerText;
use super::attempt::{Arrival, Attempt, AttemptKey, ChoiceKey, NewAttempt, NewChoice, refusal};
use super::constraint::Constraint;
use super::delivery::Delivery;
use super::mask_pool::MaskPool;
use super::outbox::{Outbox, Silent};
use super::parcel::Note;
use super::step_clock::{StepClock, Timed};
use super::{ARRIVALS_MAX, Busy, EngineHandle, EngineStatus, Rates, spawn_guarded};
use crate::execution::Used;
use crate::metrics::EngineMetrics;
use crate::session::{CancelQueue, Session};

struct StepLoop<X: Executor> {
    engine: Engine<Timed<X>, Attempt>,
    outbox: Outbox,
    text: Arc<TextModel>,
    arrivals: mpsc::Receiver<Box<NewAttempt>>,
    next_attempt: u64,
    /// Sequences that the published load does not count yet.
    unpublished: Vec<(Arc<Session>, u64)>,
    cancelled: CancelQueue,
    busy: Busy,
    progress_recorded: Instant,
    /// Set when the device is lost and the records are closed.
    device_lost: CancellationToken,
    delivery: Delivery,
    masks: MaskPool,
    /// Last, so that it is dropped last.
    status: watch::Sender<EngineStatus>,
}

/// Starts the owner thread.
pub(crate) fn spawn<X: Executor + 'static>(
    engine: Engine<Timed<X>, Attempt>,
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
        busy: Busy::new(now),
        advanced: now,
    };
    let (publisher, status) = watch::channel(status);
    let handle = EngineHandle { arrivals, status, capacity: *engine.capacity(), text: text.clone() };
    let step_loop = StepLoop {
        engine,
        outbox: Outbox::new(clock, metrics),
        text,
        arrivals: receiver,
        status: publisher,
        next_attempt: 0,
        unpublished: Vec::new(),
        cancelled: CancelQueue::default(),
        busy: Busy::new(now),
        progress_recorded: now,
        device_lost,
        delivery: Delivery::start(name)?,
        masks: MaskPool::start(name)?,
    };
    // Detached: its end shows in the status channel, which closes after everything that the loop owned is freed.
    spawn_guarded(format!("step-{name}"), move || step_loop.run())?;
    Ok(handle)
}

impl<X: Executor> StepLoop<X> {
    fn run(mut self) {
        loop {
            if !self.engine.has_work() {
                // Whoever reads that nothing is left may end the sessions.
                self.delivery.flush();
                self.publish();
                self.outbox.clock.rest();
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
            let cancelled = self.cancelled.take();
            for cancellation in cancelled.iter().filter(|cancellation| !cancellation.only_if_waiting) {
                self.engine.cancel(cancellation.id, &mut self.outbox);
            }
            if let Err(error) = self.step() {
                return self.lose_device(&error);
            }
            // Only now, as who just came had no step in which to get a seat.
            for cancellation in cancelled.iter().filter(|cancellation| cancellation.only_if_waiting) {
                self.drop_waiting(cancellation.id);
            }
            self.note_progress();
            self.delivery.hand_over(&mut self.outbox.parcel);
            // Nothing is left only when everything is out.
            if self.engine.has_sequences() {
                self.publish();
            }
        }
    }

    fn add(&mut self, attempt: NewAttempt) {
        let NewAttempt { session, execution, choices } = attempt;
        let arrival = Arrival { at: execution.arrived(), prompt_tokens: execution.prompt_tokens() };
        let attempt = AttemptKey(self.next_attempt);
        self.next_attempt += 1;
        let handles: Vec<u64> = choices.iter().map(|choice| choice.handle).collect();
        let mut execution = Some(execution);
        for (choice, new) in choices.into_iter().enumerate() {
            let NewChoice { handle, cancel, request, stop, shown, grammar } = new;
            let key = ChoiceKey { attempt, choice };
            let text = AnswerText::new(self.text.clone(), &request.prompt, stop, shown);
            let constraint = grammar.map(|grammar| Constraint::new(grammar, self.masks.clone()));
            let kept = Attempt::new(session.clone(), handle, key, arrival, text, constraint);
            let parcel = &mut self.outbox.parcel;
            match self.engine.add(request, kept) {
                Ok(id) => {
                    self.unpublished.push((session.clone(), handle));
                    cancel.taken(&self.cancelled, id);
                    if let Some(execution) = execution.take() {
                        parcel.note(Note::Opened(attempt, execution, handles.len()));
                    }
                }
                Err(error) => {
                    let reason = refusal_reason(&error);
                    let finished = refusal(arrival.prompt_tokens, reason, error.to_string());
                    // If the first one is refused, so is the request.
                    let refused = if execution.is_some() { &handles[..] } else { &[handle] };
                    let message = parcel.message_to(&session, &mut 0);
                    for &handle in refused {
                        message.push(Update { handle, finished: Some(&finished), ..Update::default() });
                    }
                    let outcome = ExecutionOutcome::Refused;
                    if let Some(execution) = execution.take() {
                        return parcel.note(Note::Refused(execution, outcome, (session, handles)));
                    }
                    parcel.note(Note::Closed(key, Used::default(), outcome, (session.clone(), handle)));
                }
            }
        }
    }

    /// Drops a sequence if it waits, and with it the other choices of its request, which wait behind it.
    fn drop_waiting(&mut self, id: SequenceId) {
        let attempt_of = |of: SequenceId| {
            self.engine.sequences().find(|(id, _)| *id == of).map(|(_, attempt)| attempt.key.attempt)
        };
        let Some(attempt) = attempt_of(id) else { return };
        if self.engine.cancel_if_waiting(id, &mut self.outbox) {
            let choices = self.engine.sequences().filter(|(_, kept)| kept.key.attempt == attempt);
            for id in choices.map(|(id, _)| id).collect::<Vec<_>>() {
                self.engine.cancel(id, &mut self.outbox);
            }
        }
    }

    /// # Errors
    /// What no later step can succeed after.
    fn step(&mut self) -> Result<(), EngineError> {
        if !self.engine.has_work() {
            return Ok(());
        }
        let report = self.engine.step(&mut self.outbox);
        let measured = self.outbox.measured();
        if let Some(host) = measured.host {
            self.outbox.metrics.host(host);
        }
        match report {
            Ok(report) => {
                if let Some(step) = measured.step {
                    self.busy.observe(step);
                    self.outbox.rates.observe(report.prefill_tokens, report.decode_tokens, step.elapsed());
                    self.outbox.metrics.step(&report, step.elapsed());
                }
            }
            Err(error) if error.is_fatal() => return Err(error),
            // The sequences of the step have ended; others are untouched.
            Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "a step failed"),
        }
        Ok(())
    }

    /// Closes the record of everything that runs or waits here. Nobody is told how it ended: the process ends its streams
    /// once this is done, and gateways go on elsewhere.
    fn lose_device(mut self, error: &EngineError) {
        tracing::error!(error = error as &dyn std::error::Error, "the device is lost; ending the process");
        let parcel = &mut self.outbox.parcel;
        self.engine.fail_all(&mut Silent(parcel));
        parcel.say_nothing();
        self.arrivals.close();
        while let Some(attempt) = self.arrivals.blocking_recv() {
            let NewAttempt { session, execution, choices } = *attempt;
            let handles = choices.iter().map(|choice| choice.handle).collect();
            parcel.note(Note::Refused(execution, ExecutionOutcome::Error, (session, handles)));
        }
        self.delivery.hand_over(parcel);
        self.delivery.flush();
        self.device_lost.cancel();
        self.publish();
        // A device that hangs would never give its memory back.
        std::mem::forget(self.engine);
    }

    fn note_progress(&mut self) {
        let now = self.outbox.clock.now();
        if now.saturating_duration_since(self.progress_recorded) >= PROGRESS_NOTE_INTERVAL {
            for (_, attempt) in self.engine.sequences() {
                self.outbox.parcel.note(Note::Progress(attempt.key, attempt.progress()));
            }
            self.progress_recorded = now;
        }
    }

    fn publish(&mut self) {
        let status = EngineStatus {
            load: self.engine.load(),
            counters: *self.engine.counters(),
            rates: self.outbox.rates,
            busy: self.busy,
            advanced: self.outbox.clock.now(),
        };
        self.outbox.metrics.load(&status);
        self.status.send_replace(status);
        // Only now: who reads the load and what it includes shall miss none of those that came during a step.
        for (session, handle) in self.unpublished.drain(..) {
            session.included(handle);
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
