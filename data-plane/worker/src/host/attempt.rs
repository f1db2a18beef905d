//! One attempt on its way through the engine, as its step loop keeps it.

use std::sync::Arc;
use std::time::Instant;

use weir_engine::{
    Commit, FinishReason, SequenceRequest, SequenceUsage, TokenId, TokenLogprobs, TokenMask, Verdict,
};
use weir_schemas::records::ExecutionOutcome;
use weir_schemas::rpc::step_message::Update;
use weir_schemas::rpc::worker as wire;
use weir_text::{GrammarMatcher, StopMatcher};

use super::answer_text::AnswerText;
use super::constraint::Constraint;
use crate::execution::{OpenExecution, Used, micros};
use crate::session::{CancelHandle, Session};

/// A request that a session hands to the step loop. Its record is open already.
#[derive(Debug)]
pub(crate) struct NewAttempt {
    pub(crate) session: Arc<Session>,
    pub(crate) execution: OpenExecution,
    /// At least one.
    pub(crate) choices: Vec<NewChoice>,
}

/// One of its sequences.
#[derive(Debug)]
pub(crate) struct NewChoice {
    pub(crate) handle: u64,
    pub(crate) cancel: CancelHandle,
    pub(crate) request: SequenceRequest,
    pub(crate) stop: StopMatcher,
    /// Control tokens that come as text.
    pub(crate) shown: Vec<TokenId>,
    /// Set if the request is constrained.
    pub(crate) grammar: Option<GrammarMatcher>,
}

/// Names an attempt within its step loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct AttemptKey(pub(super) u64);

/// Names one choice of an attempt, for its record.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChoiceKey {
    pub(super) attempt: AttemptKey,
    pub(super) choice: usize,
}

/// What an attempt came with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) at: Instant,
    pub(super) prompt_tokens: u64,
}

/// One choice, once the engine has it, which keeps this and lends it with all it tells.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(super) session: Arc<Session>,
    pub(super) handle: u64,
    pub(super) key: ChoiceKey,
    /// Of its session's message in the parcel, the last time.
    pub(super) place: usize,
    arrival: Arrival,
    text: AnswerText,
    constraint: Option<Constraint>,
    prompt_computed: u64,
    generated: u64,
    first_scheduled: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    device_ns: u64,
    /// The gateway knows how much of the prompt came from the cache.
    cached_told: bool,
}

impl Attempt {
    pub(super) fn new(
        session: Arc<Session>,
        handle: u64,
        key: ChoiceKey,
        arrival: Arrival,
        text: AnswerText,
        constraint: Option<Constraint>,
    ) -> Self {
        Self {
            session,
            handle,
            key,
            place: 0,
            arrival,
            text,
            constraint,
            prompt_computed: 0,
            generated: 0,
            first_scheduled: None,
            first_token: None,
            last_token: None,
            device_ns: 0,
            cached_told: false,
        }
    }

    /// A step that began at `started` computed `tokens` of this sequence, for which `share_ns` of its time are due.
    pub(super) fn computed(&mut self, tokens: u32, started: Instant, share_ns: u64) {
        self.first_scheduled.get_or_insert(started);
        self.device_ns += share_ns;
        if self.generated == 0 {
            // After a preemption the same tokens are computed again; a prompt is never longer than itself.
            let reached = self.prompt_computed.saturating_add(u64::from(tokens));
            self.prompt_computed = reached.min(self.arrival.prompt_tokens);
        }
    }

    /// A step that was over at `now` gave these tokens: says so.
    pub(super) fn tokens(
        &mut self,
        tokens: &[TokenId],
        logprobs: &[TokenLogprobs],
        now: Instant,
        message: &mut wire::StepMessage,
    ) {
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.generated += tokens.len() as u64;
        let (handle, cached_prompt_tokens) = (self.handle, self.tell_cached());
        let text = self.text.pending(tokens);
        // Empty, and no allocation, unless they were asked for.
        let logprobs: Vec<_> =
            tokens.iter().zip(logprobs).map(|(&token, of)| wire_logprob(token, of)).collect();
        message.push(Update {
            handle,
            tokens,
            text,
            cached_prompt_tokens,
            logprobs: &logprobs,
            ..Update::default()
        });
        self.text.taken();
    }

    /// What it has used so far.
    pub(super) fn progress(&self) -> Used {
        self.used(self.generated, self.cached_so_far(), self.prompt_computed, 0)
    }

    /// What it has used in the end, for the record and for the gateway.
    pub(super) fn end(
        &self,
        reason: FinishReason,
        usage: SequenceUsage,
    ) -> (Used, ExecutionOutcome, wire::Finished) {
        let used = self.used(
            u64::from(usage.generated_tokens),
            u64::from(usage.cached_prompt_tokens),
            u64::from(usage.computed_prompt_tokens),
            usage.preemptions,
        );
        let (outcome, wire_reason, explanation) = match reason {
            FinishReason::Stop => (ExecutionOutcome::Stop, wire::FinishReason::Stop, ""),
            FinishReason::Length => (ExecutionOutcome::Length, wire::FinishReason::Length, ""),
            FinishReason::Cancelled => (ExecutionOutcome::Cancelled, wire::FinishReason::Cancelled, ""),
            FinishReason::Error => {
                (ExecutionOutcome::Error, wire::FinishReason::Error, "the engine failed on this request")
            }
        };
        let finished = wire::Finished {
            reason: wire_reason.into(),
            prompt_tokens: self.arrival.prompt_tokens,
            cached_prompt_tokens: used.cached_tokens,
            computed_prompt_tokens: used.computed_tokens,
            generated_tokens: used.generated_tokens,
            preemptions: used.preemptions,
            queue_us: used.queue_us,
            prefill_us: used.prefill_us,
            decode_us: used.decode_us,
            message: explanation.to_owned(),
        };
        (used, outcome, finished)
    }

    /// Says the last of it.
    pub(super) fn last_words(&mut self, finished: &wire::Finished, message: &mut wire::StepMessage) {
        self.text.finish();
        let text = self.text.pending(&[]);
        message.push(Update { handle: self.handle, text, finished: Some(finished), ..Update::default() });
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
        if self.generated == 0 { 0 } else { self.arrival.prompt_tokens - self.prompt_computed }
    }

    fn used(&self, generated: u64, cached: u64, computed: u64, preemptions: u32) -> Used {
        let between = |from: Option<Instant>, to: Option<Instant>| {
            from.zip(to).map_or(0, |(from, to)| micros(to.saturating_duration_since(from)))
        };
        Used {
            cached_tokens: cached,
            computed_tokens: computed,
            generated_tokens: generated,
            preemptions,
            queue_us: between(Some(self.arrival.at), self.first_scheduled),
            prefill_us: between(self.first_scheduled, self.first_token),
            decode_us: between(self.first_token, self.last_token),
            device_us: self.device_ns / 1_000,
        }
    }
}

fn wire_logprob(token: TokenId, of: &TokenLogprobs) -> wire::TokenLogprob {
    wire::TokenLogprob {
        token,
        logprob: of.chosen,
        top_tokens: of.top.iter().map(|&(token, _)| token).collect(),
        top_logprobs: of.top.iter().map(|&(_, logprob)| logprob).collect(),
    }
}

impl Commit for Attempt {
    fn commit(&mut self, token: TokenId) -> Verdict {
        let is_stopped = self.text.push(token);
        let is_complete = self.constraint.as_mut().is_some_and(|constraint| constraint.commit(token));
        if is_stopped || is_complete { Verdict::Stop } else { Verdict::Continue }
    }

    fn mask(&mut self) -> Option<TokenMask> {
        self.constraint.as_mut().map(Constraint::mask)
    }
}

/// How a request that never ran ended.
pub(crate) fn refusal(prompt_tokens: u64, reason: wire::FinishReason, explanation: String) -> wire::Finished {
    let reason = reason.into();
    wire::Finished { reason, prompt_tokens, message: explanation, ..wire::Finished::default() }
}
