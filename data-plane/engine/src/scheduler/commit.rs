//! Takes a step's output in: progress, new tokens, stop conditions, ends.

use super::Scheduler;
use super::fair_share::{INPUT_WEIGHT, OUTPUT_WEIGHT};
use super::slots::Slot;
use super::submission::SubmittedRow;
use crate::sequence::{Class, FinishReason, SequenceEvent, SequenceId, TokenId, Verdict};
use crate::step::{Sample, StepOutput, TokenLogprobs};

/// What a step computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepTotals {
    /// By row.
    pub(crate) computed: Vec<(SequenceId, u32)>,
    pub(crate) num_rows: u32,
    pub(crate) prefill_tokens: u32,
    pub(crate) decode_tokens: u32,
}

/// The output has another number of tokens than the plan has sampling rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutputMismatch {
    pub(crate) expected: usize,
    pub(crate) sampled: usize,
}

impl Scheduler {
    /// Commits the oldest submission in flight.
    ///
    /// # Errors
    /// [`OutputMismatch`], with nothing changed: follow up with [`Self::fail_in_flight`].
    pub(crate) fn commit(
        &mut self,
        output: StepOutput,
        events: &mut Vec<SequenceEvent>,
    ) -> Result<StepTotals, OutputMismatch> {
        let rows = self.in_flight.front().map_or(&[][..], |submission| &submission.rows);
        check(rows, &output)?;
        let Some(submission) = self.in_flight.pop_front() else { return Ok(StepTotals::default()) };
        let mut totals = StepTotals {
            computed: Vec::with_capacity(submission.rows.len()),
            num_rows: u32::try_from(submission.rows.len()).expect("at most as many as seats"),
            ..StepTotals::default()
        };
        // Almost every row gives a token, and few of them end a sequence.
        events.reserve(submission.rows.len() + submission.rows.len() / 8);
        let mut class_cost = [0.0; 2];
        let mut num_tokens = output.num_tokens.into_iter();
        let (mut tokens, mut logprobs) = (output.tokens.into_iter(), output.logprobs.into_iter());
        for row in submission.rows {
            let sampled = match row.sample {
                Sample::No => None,
                Sample::Token | Sample::Masked => num_tokens.next(),
            };
            let token = sampled.filter(|num_tokens| *num_tokens > 0).and_then(|_| tokens.next());
            let logprobs = if row.has_logprobs && token.is_some() { logprobs.next() } else { None };
            let Some(slot) = row.slot else { continue };
            let sequence = &mut self.slots[slot];
            sequence.in_flight -= 1;
            sequence.pending_samples -= u32::from(sampled.is_some());
            totals.computed.push((sequence.id, row.num_tokens));
            let class = sequence.class;
            class_cost[class as usize] += self.advance(slot, row.num_tokens, &mut totals);
            if sampled.is_none() || self.take_token(slot, token, logprobs, events) {
                self.give_way_if_due(slot);
            }
        }
        self.release(&submission.releases);
        self.floor.serve(
            class_cost[Class::Interactive as usize],
            class_cost[Class::Batch as usize],
            submission.batch_lacks,
        );
        self.count_step(&totals);
        Ok(totals)
    }

    /// Who was to give way does so as soon as nothing in flight names it.
    fn give_way_if_due(&mut self, slot: Slot) {
        let sequence = &self.slots[slot];
        if sequence.is_yielding && sequence.in_flight == 0 {
            self.preempt(slot);
        }
    }

    /// The submitted tokens are computed: full blocks become findable. Returns the service this was to its class;
    /// recomputing is none.
    fn advance(&mut self, slot: Slot, num_tokens: u32, totals: &mut StepTotals) -> f64 {
        let sequence = &mut self.slots[slot];
        let start = sequence.num_computed_tokens;
        let is_decode = num_tokens == 1 && start >= sequence.prompt_tokens.max(sequence.furthest_computed);
        sequence.num_computed_tokens += num_tokens;
        let recomputed = sequence.furthest_computed.min(sequence.num_computed_tokens).saturating_sub(start);
        sequence.furthest_computed = sequence.furthest_computed.max(sequence.num_computed_tokens);
        while (sequence.published_blocks + 1) * self.block_tokens <= sequence.num_computed_tokens {
            let index = sequence.published_blocks;
            let hash = sequence.block_hash(index, self.block_tokens);
            self.kv.publish(sequence.block_table.blocks()[index as usize], hash);
            sequence.published_blocks += 1;
        }
        if is_decode {
            totals.decode_tokens += 1;
            return OUTPUT_WEIGHT;
        }
        totals.prefill_tokens += num_tokens;
        self.counters.recomputed_tokens += u64::from(recomputed);
        INPUT_WEIGHT * f64::from(num_tokens - recomputed)
    }

    /// False if the sequence is over.
    fn take_token(
        &mut self,
        slot: Slot,
        token: Option<TokenId>,
        logprobs: Option<TokenLogprobs>,
        events: &mut Vec<SequenceEvent>,
    ) -> bool {
        let sequence = &mut self.slots[slot];
        let Some(token) = token.filter(|token| *token < self.vocab_size) else {
            self.retire(slot, FinishReason::Error, events);
            return false;
        };
        sequence.tokens.push(token);
        self.counters.generated_tokens += 1;
        self.fair.charge(sequence.tenant, OUTPUT_WEIGHT);
        events.push(SequenceEvent::Token { id: sequence.id, token, logprobs: logprobs.map(Box::new) });
        let stops = sequence.stop_tokens.contains(&token) || sequence.commit.commit(token) == Verdict::Stop;
        if stops {
            self.retire(slot, FinishReason::Stop, events);
        } else if sequence.reached_max_tokens() {
            self.retire(slot, FinishReason::Length, events);
        } else {
            return true;
        }
        false
    }

    fn count_step(&mut self, totals: &StepTotals) {
        let counters = &mut self.counters;
        counters.steps += 1;
        counters.rows_sum += u64::from(totals.num_rows);
        counters.rows_max = counters.rows_max.max(totals.num_rows);
        counters.rows_last = totals.num_rows;
        counters.prefill_tokens += u64::from(totals.prefill_tokens);
        counters.decode_tokens += u64::from(totals.decode_tokens);
    }
}

/// Every sampling row has its entry and at most one token, and every token that was to have them its log-probabilities.
fn check(rows: &[SubmittedRow], output: &StepOutput) -> Result<(), OutputMismatch> {
    let sampling = rows.iter().filter(|row| row.sample != Sample::No);
    let expected = sampling.clone().count();
    let with_logprobs = sampling.zip(&output.num_tokens).filter(|(row, _)| row.has_logprobs);
    let num_logprobs = with_logprobs.map(|(_, num_tokens)| *num_tokens as usize).sum::<usize>();
    let num_tokens = output.num_tokens.iter().map(|num_tokens| *num_tokens as usize).sum::<usize>();
    let is_sound = output.num_tokens.len() == expected
        && output.num_tokens.iter().all(|num_tokens| *num_tokens <= 1)
        && output.tokens.len() == num_tokens
        && output.logprobs.len() == num_logprobs;
    if is_sound { Ok(()) } else { Err(OutputMismatch { expected, sampled: output.tokens.len() }) }
}
