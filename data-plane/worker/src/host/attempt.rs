//! One attempt on its way through the engine, as its step loop keeps it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::{FinishReason, SequenceRequest, SequenceUsage, TokenId};
use weir_schemas::records::ExecutionOutcome;
use weir_schemas::rpc::worker as wire;
use weir_text::StopMatcher;

use super::text_commit::ShownText;
use crate::execution::{OpenExecution, Used, micros};
use crate::session::{CancelFlag, Session};

/// A request that a session hands to the step loop. Its record is open already.
#[derive(Debug)]
pub(crate) struct NewAttempt {
    pub(crate) session: Arc<Session>,
    pub(crate) handle: u64,
    pub(crate) cancelled: CancelFlag,
    pub(crate) execution: OpenExecution,
    pub(crate) request: SequenceRequest,
    pub(crate) stop: StopMatcher,
}

/// The same, once the engine has it.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) session: Arc<Session>,
    pub(super) handle: u64,
    cancelled: CancelFlag,
    execution: OpenExecution,
    shown: ShownText,
    /// Sampled since the last message.
    tokens: Vec<TokenId>,
    prompt_computed: u64,
    generated: u64,
    first_scheduled: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    device: Duration,
    /// The gateway knows how much of the prompt came from the cache.
    cached_told: bool,
}

impl Attempt {
    pub(super) fn new(
        session: Arc<Session>,
        handle: u64,
        cancelled: CancelFlag,
        execution: OpenExecution,
        shown: ShownText,
    ) -> Self {
        Self {
            session,
            handle,
            cancelled,
            execution,
            shown,
            tokens: Vec::new(),
            prompt_computed: 0,
            generated: 0,
            first_scheduled: None,
            first_token: None,
            last_token: None,
            device: Duration::ZERO,
            cached_told: false,
        }
    }

    /// Nobody wants it any more: cancelled, or its gateway is gone.
    pub(super) fn is_unwanted(&self) -> bool {
        self.cancelled.is_set() || self.session.is_closed()
    }

    /// A step that began at `started` computed `tokens` of this sequence, for which `share` of its time is due.
    pub(super) fn computed(&mut self, tokens: u32, started: Instant, share: Duration) {
        self.first_scheduled.get_or_insert(started);
        self.device += share;
        if self.generated == 0 {
            // After a preemption the same tokens are computed again; a prompt is never longer than itself.
            let reached = self.prompt_computed.saturating_add(u64::from(tokens));
            self.prompt_computed = reached.min(self.execution.prompt_tokens());
        }
    }

    pub(super) fn token(&mut self, token: TokenId, now: Instant) {
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.generated += 1;
        self.tokens.push(token);
    }

    /// This step's message, if there is anything to say.
    pub(super) fn update(&mut self) -> Option<wire::SequenceUpdate> {
        let text = self.shown.take();
        if self.tokens.is_empty() && text.is_empty() {
            return None;
        }
        let tokens = std::mem::take(&mut self.tokens);
        let cached_prompt_tokens = self.tell_cached();
        Some(wire::SequenceUpdate { handle: self.handle, tokens, text, finished: None, cached_prompt_tokens })
    }

    pub(super) fn record_progress(&mut self) {
        let used = self.used(self.generated, self.cached_so_far(), self.prompt_computed, 0);
        self.execution.progress(used);
    }

    /// Closes the record and gives the last message.
    pub(super) fn finish(mut self, reason: FinishReason, usage: SequenceUsage) -> wire::SequenceUpdate {
        let used = self.used(
            u64::from(usage.generated_tokens),
            u64::from(usage.cached_prompt_tokens),
            u64::from(usage.computed_prompt_tokens),
            usage.preemptions,
        );
        let (outcome, wire_reason, message) = match reason {
            FinishReason::Stop => (ExecutionOutcome::Stop, wire::FinishReason::Stop, ""),
            FinishReason::Length => (ExecutionOutcome::Length, wire::FinishReason::Length, ""),
            FinishReason::Cancelled => (ExecutionOutcome::Cancelled, wire::FinishReason::Cancelled, ""),
            FinishReason::Error => {
                (ExecutionOutcome::Error, wire::FinishReason::Error, "the engine failed on this request")
            }
        };
        let text = self.shown.finish();
        let finished = wire::Finished {
            reason: wire_reason.into(),
            prompt_tokens: self.execution.prompt_tokens(),
            cached_prompt_tokens: used.cached_tokens,
            computed_prompt_tokens: used.computed_tokens,
            generated_tokens: used.generated_tokens,
            preemptions: used.preemptions,
            queue_us: used.queue_us,
            prefill_us: used.prefill_us,
            decode_us: used.decode_us,
            message: message.to_owned(),
        };
        let tokens = std::mem::take(&mut self.tokens);
        let cached_prompt_tokens = self.tell_cached();
        // The record first: what a gateway is told must survive this process.
        self.execution.close(used, outcome);
        wire::SequenceUpdate {
            handle: self.handle,
            tokens,
            text,
            finished: Some(finished),
            cached_prompt_tokens,
        }
    }

    /// Said once, with the first token.
    fn tell_cached(&mut self) -> Option<u64> {
        if self.generated == 0 || std::mem::replace(&mut self.cached_told, true) {
            return None;
        }
        Some(self.cached_so_far())
    }

    /// Once there is a token, whatever of the prompt was not computed came from the cache.
    fn cached_so_far(&self) -> u64 {
        if self.generated == 0 { 0 } else { self.execution.prompt_tokens() - self.prompt_computed }
    }

    fn used(&self, generated: u64, cached: u64, computed: u64, preemptions: u32) -> Used {
        let arrived = self.execution.arrived();
        let between = |from: Option<Instant>, to: Option<Instant>| {
            from.zip(to).map_or(0, |(from, to)| micros(to.saturating_duration_since(from)))
        };
        Used {
            cached_tokens: cached,
            computed_tokens: computed,
            generated_tokens: generated,
            preemptions,
            queue_us: between(Some(arrived), self.first_scheduled),
            prefill_us: between(self.first_scheduled, self.first_token),
            decode_us: between(self.first_token, self.last_token),
            device_us: micros(self.device),
        }
    }
}

/// The last message of a request that never ran.
pub(crate) fn refusal(
    handle: u64,
    prompt_tokens: u64,
    reason: wire::FinishReason,
    message: String,
) -> wire::SequenceUpdate {
    let finished =
        wire::Finished { reason: reason.into(), prompt_tokens, message, ..wire::Finished::default() };
    wire::SequenceUpdate { handle, finished: Some(finished), ..wire::SequenceUpdate::default() }
}
