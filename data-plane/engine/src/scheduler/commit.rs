//! Takes a step's output in: progress, new tokens, stop conditions, ends.

use super::Scheduler;
use super::fair_share::{INPUT_WEIGHT, OUTPUT_WEIGHT};
use super::slots::Slot;
use crate::sequence::{Class, FinishReason, SequenceEvent, SequenceId, TokenId, Verdict};
use crate::step::StepOutput;

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
}

impl Scheduler {
    /// Commits the submission in flight.
    ///
    /// # Errors
    /// [`OutputMismatch`], with nothing changed: follow up with [`Self::fail_in_flight`].
    pub(crate) fn commit(
        &mut self,
        output: &StepOutput,
        events: &mut Vec<SequenceEvent>,
    ) -> Result<StepTotals, OutputMismatch> {
        let samples = |slot: Slot| self.slots[slot].planned_tokens == self.slots[slot].remaining();
        let expected = self.in_flight.iter().filter(|slot| samples(**slot)).count();
        if output.sampled.len() != expected {
            return Err(OutputMismatch { expected });
        }
        let batch_lacks = self.batch_lacks();
        let mut totals = StepTotals::default();
        totals.computed.reserve_exact(self.in_flight.len());
        let mut class_cost = [0.0; 2];
        let mut sampled = output.sampled.iter();
        let mut rows = std::mem::take(&mut self.in_flight);
        for slot in rows.drain(..) {
            let sequence = &mut self.slots[slot];
            sequence.in_flight = false;
            let samples = sequence.planned_tokens == sequence.remaining();
            let token = if samples { sampled.next().copied().flatten() } else { None };
            totals.num_rows += 1;
            totals.computed.push((sequence.id, sequence.planned_tokens));
            if sequence.cancelled {
                self.retire(slot, FinishReason::Cancelled, events);
                continue;
            }
            let class = sequence.class;
            class_cost[class as usize] += self.advance(slot, &mut totals);
            if samples {
                self.take_token(slot, token, events);
            }
        }
        self.in_flight = rows;
        self.floor.serve(
            class_cost[Class::Interactive as usize],
            class_cost[Class::Batch as usize],
            batch_lacks,
        );
        self.count_step(&totals);
        Ok(totals)
    }

    /// Ends every sequence of the submission in flight; what it wrote cannot be relied on.
    pub(crate) fn fail_in_flight(&mut self, events: &mut Vec<SequenceEvent>) {
        let mut rows = std::mem::take(&mut self.in_flight);
        for slot in rows.drain(..) {
            let sequence = &mut self.slots[slot];
            sequence.in_flight = false;
            let reason = if sequence.cancelled { FinishReason::Cancelled } else { FinishReason::Error };
            self.retire(slot, reason, events);
        }
        self.in_flight = rows;
    }

    /// The planned tokens are computed: full blocks become findable. Returns the service this was to its class;
    /// recomputing is none.
    fn advance(&mut self, slot: Slot, totals: &mut StepTotals) -> f64 {
        let sequence = &mut self.slots[slot];
        let start = sequence.num_computed_tokens;
        let num_tokens = std::mem::take(&mut sequence.planned_tokens);
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

    fn take_token(&mut self, slot: Slot, token: Option<TokenId>, events: &mut Vec<SequenceEvent>) {
        let sequence = &mut self.slots[slot];
        let Some(token) = token.filter(|token| *token < self.vocab_size) else {
            self.retire(slot, FinishReason::Error, events);
            return;
        };
        sequence.tokens.push(token);
        self.counters.generated_tokens += 1;
        self.fair.charge(sequence.tenant, OUTPUT_WEIGHT);
        events.push(SequenceEvent::Token { id: sequence.id, token });
        let stops = sequence.stop_tokens.contains(&token) || sequence.commit.commit(token) == Verdict::Stop;
        if stops {
            self.retire(slot, FinishReason::Stop, events);
        } else if sequence.reached_max_tokens() {
            self.retire(slot, FinishReason::Length, events);
        }
    }

    /// A batch sequence wanted to run in this step and did not.
    fn batch_lacks(&self) -> bool {
        let idle = |slot: &Slot| {
            let sequence = &self.slots[*slot];
            sequence.class == Class::Batch && sequence.planned_tokens == 0
        };
        self.waiting.len(Class::Batch) > 0 || self.running.iter().any(idle)
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
