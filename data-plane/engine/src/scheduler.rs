//! Decides what runs in each step, and keeps every sequence from arrival to its end.
//!
//! There is no prefill and no decode phase: every sequence has `num_computed_tokens`, which catches up with its
//! length. A plan gives each running sequence that is one token behind that token, and what the step's budget
//! leaves goes to chunks of those further behind and to newly admitted ones.
//!
//! It owns the queues, the order, the block tables and the counts. It never sees a weight, a logit or a clock,
//! and never talks to an executor: [`crate::engine`] carries plans out and outputs in.

mod admission;
mod budget;
mod class_floor;
mod commit;
mod fair_share;
mod integrity;
mod preemption;
mod prefill;
mod retirement;
mod slots;
mod waiting;

use crate::engine::{AddError, EngineConfig, EngineCounters, EngineLoad};
use crate::executor::Capacity;
use crate::kv_cache::KvCache;
use crate::sequence::{Class, Commit, FinishReason, Sequence, SequenceEvent, SequenceId, SequenceRequest};
use crate::step::{PlanRow, StepPlan};
use admission::AdmissionRound;
use budget::PrefillBudget;
use class_floor::ClassFloor;
use fair_share::FairShare;
use slots::{Slot, Slots};
use waiting::{Entry, WaitingQueue};

pub(crate) use commit::StepTotals;

pub(crate) struct Scheduler {
    config: EngineConfig,
    block_tokens: u32,
    vocab_size: u32,
    slots: Slots,
    /// Sequences with a seat, by admission. The order of a plan's rows.
    running: Vec<Slot>,
    waiting: WaitingQueue,
    fair: FairShare,
    floor: ClassFloor,
    kv: KvCache,
    /// Rows of the submission in flight, in the order of its plan.
    in_flight: Vec<Slot>,
    /// False if nothing that an admission could need has changed since the last one failed.
    admission_worthwhile: bool,
    step: u64,
    next_id: u64,
    counters: EngineCounters,
}

impl Scheduler {
    pub(crate) fn new(config: EngineConfig, capacity: &Capacity) -> Self {
        Self {
            config,
            block_tokens: capacity.block_tokens,
            vocab_size: capacity.vocab_size,
            slots: Slots::default(),
            running: Vec::with_capacity(config.seats as usize),
            waiting: WaitingQueue::default(),
            fair: FairShare::default(),
            floor: ClassFloor::new(config.batch_floor_permille),
            kv: KvCache::new(capacity.num_pages),
            in_flight: Vec::with_capacity(config.seats as usize),
            admission_worthwhile: false,
            step: 0,
            next_id: 0,
            counters: EngineCounters::default(),
        }
    }

    /// Takes a request that is valid and can fit.
    pub(crate) fn add(
        &mut self,
        request: SequenceRequest,
        commit: Box<dyn Commit>,
    ) -> Result<SequenceId, AddError> {
        let waiting_tokens = self.waiting.num_tokens() + request.prompt.len() as u64;
        if self.waiting.total_len() >= self.config.waiting_max
            || waiting_tokens > self.config.waiting_tokens_max
        {
            return Err(AddError::QueueFull);
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.fair.enter(request.tenant, request.tenant_weight);
        let slot = self.slots.insert(Sequence::new(id, request, commit, self.block_tokens));
        self.enqueue(slot);
        Ok(id)
    }

    /// Ends a sequence now, or when the submission that names it is collected.
    pub(crate) fn cancel(&mut self, id: SequenceId, events: &mut Vec<SequenceEvent>) {
        let Some(slot) = self.slots.find(id) else { return };
        if self.slots[slot].in_flight {
            self.slots[slot].cancelled = true;
        } else {
            self.retire(slot, FinishReason::Cancelled, events);
        }
    }

    /// Makes the next step's plan, or `None` if there is nothing to compute. The rows are in flight until
    /// [`Self::commit`] or [`Self::fail_in_flight`].
    pub(crate) fn plan(&mut self) -> Option<StepPlan> {
        self.step += 1;
        let mut plan = StepPlan::default();
        self.make_room_for_decodes(&mut plan.copies);
        let mut budget = self.plan_decodes();
        self.reopen_admission_now_and_then();
        let mut round = AdmissionRound::default();
        for class in self.floor.order() {
            self.plan_prefills(class, &mut budget, &mut round);
        }
        self.admission_worthwhile &= round.was_cut_short() || budget.is_spent();
        self.fill_rows(&mut plan);
        if plan.rows.is_empty() { None } else { Some(plan) }
    }

    pub(crate) fn has_sequences(&self) -> bool {
        !self.slots.is_empty()
    }

    pub(crate) fn counters(&self) -> &EngineCounters {
        &self.counters
    }

    pub(crate) fn load(&self) -> EngineLoad {
        let usage = self.kv.usage();
        let prefilling = self.running.iter().map(|&slot| &self.slots[slot]).filter(|seq| !seq.is_decoding());
        EngineLoad {
            running: self.num_running(),
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
        self.waiting.insert(sequence.class, sequence.tenant, entry);
        self.admission_worthwhile = true;
    }

    /// Every sequence that is one token behind gets that token.
    fn plan_decodes(&mut self) -> PrefillBudget {
        let mut num_decodes = 0;
        for &slot in &self.running {
            let sequence = &mut self.slots[slot];
            if sequence.is_decoding() {
                sequence.planned_tokens = 1;
                num_decodes += 1;
            }
        }
        PrefillBudget::beside_decodes(&self.config, num_decodes)
    }

    fn fill_rows(&mut self, plan: &mut StepPlan) {
        assert!(self.in_flight.is_empty(), "one submission at a time");
        plan.rows.reserve_exact(self.running.len());
        plan.tokens.reserve(self.running.len());
        for &slot in &self.running {
            let sequence = &mut self.slots[slot];
            if sequence.planned_tokens == 0 {
                continue;
            }
            let start = sequence.num_computed_tokens;
            let end = start + sequence.planned_tokens;
            let first_token = plan.tokens.len();
            plan.tokens.extend_from_slice(&sequence.tokens[start as usize..end as usize]);
            plan.rows.push(PlanRow {
                sequence: sequence.id,
                tokens: first_token..plan.tokens.len(),
                start_position: start,
                block_table: sequence.block_table.clone(),
                sample: (end == sequence.len()).then_some(sequence.sampling),
            });
            sequence.in_flight = true;
            self.in_flight.push(slot);
        }
    }
}
