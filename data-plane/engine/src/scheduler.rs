//! Decides what runs in each step, and keeps every sequence from arrival to its end.
//!
//! There is no prefill and no decode phase: every sequence has `num_computed_tokens`, which catches up with its
//! length. A plan gives each running sequence that is one token behind that token, and what the step's budget
//! leaves goes to chunks of those further behind and to newly admitted ones.
//!
//! A plan may be made while earlier ones run. It takes for granted that each of their rows gives its token and that
//! the token ends nothing; a row for which that turns out wrong is discarded when it is collected. What a submission
//! names is given to nobody else before that: pages of a sequence that ends or gives way come back with the last
//! submission that names them.
//!
//! It owns the queues, the order, the block tables and the counts. It never sees a weight, a logit or a clock,
//! and never talks to an executor: [`crate::engine`] carries plans out and outputs in.

mod admission;
mod budget;
mod class_floor;
mod commit;
mod decode;
mod fair_share;
mod integrity;
mod preemption;
mod prefill;
mod retirement;
mod slots;
mod submission;
mod waiting;

use std::collections::VecDeque;

use crate::engine::{AddError, EngineConfig, EngineCounters, EngineLoad};
use crate::executor::Capacity;
use crate::kv_cache::KvCache;
use crate::sequence::{Class, Commit, FinishReason, Sequence, SequenceId, SequenceRequest, Sink};
use crate::step::{PlanRow, RowInput, Sample, Seat, StepPlan, TableUpdate};
use admission::AdmissionRound;
use class_floor::ClassFloor;
use fair_share::FairShare;
use slots::{Slot, Slots};
use submission::{Submission, SubmittedRow};
use waiting::{Entry, WaitingQueue};

pub(crate) use commit::OutputMismatch;
pub(crate) use fair_share::AccountId;

pub(crate) struct Scheduler<C> {
    config: EngineConfig,
    block_tokens: u32,
    vocab_size: u32,
    slots: Slots<C>,
    /// Sequences with a seat, by admission. The order of a plan's rows.
    running: Vec<Slot>,
    /// Of those, who was more than one token behind when the latest plan was made: they share the budget that its decodes
    /// leave.
    behind: Vec<Slot>,
    /// How many of those with a seat are of class batch.
    running_batch: u32,
    free_seats: Vec<Seat>,
    waiting: WaitingQueue,
    fair: FairShare,
    floor: ClassFloor,
    kv: KvCache,
    /// Oldest first.
    in_flight: VecDeque<Submission>,
    /// False if nothing that an admission could need has changed since the last one failed.
    admission_worthwhile: bool,
    step: u64,
    next_id: u64,
    counters: EngineCounters,
}

impl<C: Commit> Scheduler<C> {
    pub(crate) fn new(config: EngineConfig, capacity: &Capacity) -> Self {
        Self {
            config,
            block_tokens: capacity.block_tokens,
            vocab_size: capacity.vocab_size,
            slots: Slots::default(),
            running: Vec::with_capacity(config.seats as usize),
            behind: Vec::new(),
            running_batch: 0,
            free_seats: (0..config.seats).rev().map(Seat).collect(),
            waiting: WaitingQueue::default(),
            fair: FairShare::default(),
            floor: ClassFloor::new(config.batch_floor_permille),
            kv: KvCache::new(capacity.num_pages),
            in_flight: VecDeque::with_capacity(capacity.max_in_flight as usize),
            admission_worthwhile: false,
            step: 0,
            next_id: 0,
            counters: EngineCounters::default(),
        }
    }

    /// Takes a request that is valid and can fit.
    pub(crate) fn add(&mut self, request: SequenceRequest, commit: C) -> Result<SequenceId, AddError> {
        let waiting_tokens = self.waiting.num_tokens() + request.prompt.len() as u64;
        if self.waiting.total_len() >= self.config.waiting_max
            || waiting_tokens > self.config.waiting_tokens_max
        {
            return Err(AddError::QueueFull);
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        let account = self.fair.enter(request.tenant, request.tenant_weight);
        let slot = self.slots.insert(Sequence::new(id, request, account, commit, self.block_tokens));
        self.enqueue(slot);
        Ok(id)
    }

    /// Ends a sequence. Its rows in flight are discarded.
    pub(crate) fn cancel(&mut self, id: SequenceId, sink: &mut impl Sink<C>) {
        if let Some(slot) = self.slots.find(id) {
            self.retire(slot, FinishReason::Cancelled, sink);
        }
    }

    /// Ends a sequence that never had a seat; whether there was one.
    pub(crate) fn cancel_if_waiting(&mut self, id: SequenceId, sink: &mut impl Sink<C>) -> bool {
        let waiting = self.slots.find(id).filter(|&slot| !self.slots[slot].was_admitted);
        if let Some(slot) = waiting {
            self.retire(slot, FinishReason::Cancelled, sink);
        }
        waiting.is_some()
    }

    /// Ends every sequence, as no step will succeed any more.
    pub(crate) fn fail_all(&mut self, sink: &mut impl Sink<C>) {
        self.fail_in_flight(sink);
        for id in self.slots.iter().map(|sequence| sequence.id).collect::<Vec<_>>() {
            if let Some(slot) = self.slots.find(id) {
                self.retire(slot, FinishReason::Error, sink);
            }
        }
    }

    /// Makes the next step's plan, or `None` if there is nothing to compute. It is in flight until
    /// [`Self::commit`], [`Self::fail_latest`] or [`Self::fail_in_flight`].
    pub(crate) fn plan(&mut self) -> Option<StepPlan> {
        self.step += 1;
        let mut plan = StepPlan::default();
        let mut budget = self.plan_decodes(&mut plan.copies);
        self.reopen_admission_now_and_then();
        let mut round = AdmissionRound::default();
        for class in self.floor.order() {
            self.plan_prefills(class, &mut budget, &mut round);
        }
        self.admission_worthwhile &= round.was_cut_short() || budget.is_spent();
        let submission = self.fill_rows(&mut plan);
        if plan.rows.is_empty() {
            return None;
        }
        self.in_flight.push_back(submission);
        Some(plan)
    }

    pub(crate) fn has_sequences(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Every sequence and what is kept for it.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = (SequenceId, &C)> {
        self.slots.iter().map(|sequence| (sequence.id, &sequence.commit))
    }

    pub(crate) fn counters(&self) -> &EngineCounters {
        &self.counters
    }

    pub(crate) fn load(&self) -> EngineLoad {
        let usage = self.kv.usage();
        let prefilling = self.behind.iter().map(|&slot| &self.slots[slot]).filter(|seq| !seq.is_decoding());
        EngineLoad {
            running: self.num_running(),
            running_batch: self.running_batch,
            seats: self.config.seats,
            waiting_interactive: self.waiting.len(Class::Interactive),
            waiting_batch: self.waiting.len(Class::Batch),
            free_blocks: usage.free,
            cached_blocks: usage.cached,
            referenced_blocks: usage.referenced,
            queued_prefill_tokens: self.waiting.num_tokens()
                + prefilling.map(|sequence| u64::from(sequence.remaining())).sum::<u64>(),
        }
    }

    fn num_running(&self) -> u32 {
        u32::try_from(self.running.len()).expect("at most as many as seats")
    }

    fn enqueue(&mut self, slot: Slot) {
        let sequence = &self.slots[slot];
        let entry = Entry { id: sequence.id, slot, num_tokens: sequence.len() };
        self.waiting.insert(sequence.class, sequence.account, entry);
        self.admission_worthwhile = true;
    }

    fn fill_rows(&mut self, plan: &mut StepPlan) -> Submission {
        let mut submission = Submission::new(self.running.len());
        submission.batch_lacks = self.waiting.len(Class::Batch) > 0;
        plan.rows.reserve_exact(self.running.len());
        plan.tokens.reserve(self.running.len());
        for &slot in &self.running {
            let sequence = &mut self.slots[slot];
            let num_tokens = std::mem::take(&mut sequence.planned_tokens);
            if num_tokens == 0 {
                submission.batch_lacks |= sequence.class == Class::Batch && sequence.remaining() > 0;
                continue;
            }
            let seat = sequence.seat.expect("it runs");
            if std::mem::take(&mut sequence.is_newly_seated) {
                plan.seats.push(sequence.seat_setup(seat));
            }
            if std::mem::take(&mut sequence.has_new_table) {
                let blocks = sequence.block_table.clone();
                plan.block_tables.push(TableUpdate { seat, layer_group: 0, blocks });
            }
            let start = sequence.num_submitted_tokens;
            let end = start + num_tokens;
            let input = if start < sequence.len() {
                let first_token = plan.tokens.len();
                plan.tokens.extend_from_slice(&sequence.tokens[start as usize..end as usize]);
                RowInput::Tokens(first_token..plan.tokens.len())
            } else {
                RowInput::LastSampled
            };
            let sample = match end == sequence.expected_len() {
                false => Sample::No,
                true if sequence.is_constrained => Sample::Masked,
                true => Sample::Token,
            };
            submission.lacks_masks |= sample == Sample::Masked;
            plan.rows.push(PlanRow { sequence: sequence.id, seat, input, start_position: start, sample });
            submission.rows.push(SubmittedRow {
                slot: Some(slot),
                sequence: sequence.id,
                num_tokens,
                sample,
                has_logprobs: sequence.sampling.logprobs.is_some(),
            });
            sequence.num_submitted_tokens = end;
            sequence.in_flight += 1;
            sequence.pending_samples += u32::from(sample != Sample::No);
        }
        submission
    }
}
