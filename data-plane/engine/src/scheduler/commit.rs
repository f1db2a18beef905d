//! Takes a step's output in: progress, new tokens, stop conditions, ends.

use super::Scheduler;
use super::fair_share::{INPUT_WEIGHT, OUTPUT_WEIGHT};
use super::slots::Slot;
use super::submission::SubmittedRow;
use crate::engine::StepReport;
use crate::sequence::{Advance, Class, Commit, FinishReason, Sink, TokenId, Verdict};
use crate::step::{Sample, StepOutput};

/// The output has another number of tokens than the plan has sampling rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutputMismatch {
    pub(crate) expected: usize,
    pub(crate) sampled: usize,
}

impl<C: Commit> Scheduler<C> {
    /// Commits the oldest submission in flight.
    ///
    /// # Errors
    /// [`OutputMismatch`], with nothing changed: follow up with [`Self::fail_in_flight`].
    pub(crate) fn commit(
        &mut self,
        output: &StepOutput,
        sink: &mut impl Sink<C>,
    ) -> Result<StepReport, OutputMismatch> {
        let rows = self.in_flight.front().map_or(&[][..], |submission| &submission.rows);
        check(rows, output)?;
        let Some(submission) = self.in_flight.pop_front() else { return Ok(StepReport::default()) };
        let live = submission.rows.iter().filter(|row| row.slot.is_some());
        sink.collected(live.map(|row| row.num_tokens).sum());
        let mut report = StepReport {
            num_rows: u32::try_from(submission.rows.len()).expect("at most as many as seats"),
            ..StepReport::default()
        };
        let mut class_cost = [0.0; 2];
        let mut num_tokens = output.num_tokens.iter().map(|num_tokens| *num_tokens as usize);
        let (mut tokens, mut logprobs) = (&output.tokens[..], &output.logprobs[..]);
        for row in submission.rows {
            let num_tokens = if row.sample == Sample::No { None } else { num_tokens.next() };
            let given = take(&mut tokens, num_tokens.unwrap_or(0));
            let logprobs = take(&mut logprobs, if row.has_logprobs { given.len() } else { 0 });
            let Some(slot) = row.slot else { continue };
            let sequence = &mut self.slots[slot];
            sequence.in_flight -= 1;
            sequence.pending_samples -= u32::from(num_tokens.is_some());
            let class = sequence.class;
            class_cost[class as usize] += self.advance(slot, row.num_tokens, &mut report);
            let (accepted, end) = match num_tokens {
                None => (0, None),
                Some(0) => (0, Some(FinishReason::Error)),
                Some(_) => self.take_tokens(slot, given),
            };
            let sequence = &mut self.slots[slot];
            let advance = Advance {
                computed: row.num_tokens,
                tokens: &given[..accepted],
                logprobs: &logprobs[..accepted.min(logprobs.len())],
            };
            sink.advanced(sequence.id, &mut sequence.commit, advance);
            match end {
                Some(reason) => self.retire(slot, reason, sink),
                None => self.give_way_if_due(slot),
            }
        }
        self.release(&submission.releases);
        self.floor.serve(
            class_cost[Class::Interactive as usize],
            class_cost[Class::Batch as usize],
            submission.batch_lacks,
        );
        self.count_step(&report);
        Ok(report)
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
    fn advance(&mut self, slot: Slot, num_tokens: u32, report: &mut StepReport) -> f64 {
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
            report.decode_tokens += 1;
            return OUTPUT_WEIGHT;
        }
        report.prefill_tokens += num_tokens;
        self.counters.recomputed_tokens += u64::from(recomputed);
        INPUT_WEIGHT * f64::from(num_tokens - recomputed)
    }

    /// Appends what was sampled up to the token that ends the sequence, if one does. Returns how many that is, and why it
    /// is over.
    fn take_tokens(&mut self, slot: Slot, given: &[TokenId]) -> (usize, Option<FinishReason>) {
        let sequence = &mut self.slots[slot];
        let mut accepted = 0;
        let mut end = None;
        while end.is_none()
            && let Some(&token) = given.get(accepted)
        {
            if token >= self.vocab_size {
                end = Some(FinishReason::Error);
                break;
            }
            accepted += 1;
            sequence.tokens.push(token);
            if sequence.stop_tokens.contains(&token) || sequence.commit.commit(token) == Verdict::Stop {
                end = Some(FinishReason::Stop);
            } else if sequence.reached_max_tokens() {
                end = Some(FinishReason::Length);
            }
        }
        self.counters.generated_tokens += accepted as u64;
        #[expect(clippy::cast_precision_loss, reason = "a handful of tokens")]
        self.fair.charge(sequence.account, OUTPUT_WEIGHT * accepted as f64);
        (accepted, end)
    }

    fn count_step(&mut self, report: &StepReport) {
        let counters = &mut self.counters;
        counters.steps += 1;
        counters.rows_sum += u64::from(report.num_rows);
        counters.rows_max = counters.rows_max.max(report.num_rows);
        counters.rows_last = report.num_rows;
        counters.prefill_tokens += u64::from(report.prefill_tokens);
        counters.decode_tokens += u64::from(report.decode_tokens);
    }
}

/// The first `count` of what is left. The output was checked to have as many.
fn take<'a, T>(left: &mut &'a [T], count: usize) -> &'a [T] {
    let (taken, rest) = left.split_at(count);
    *left = rest;
    taken
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
