//! Runs plans on this machine's CPUs.
//!
//! Owns the loaded model, the pool of KV pages, the seats and the sampler. A plan runs inside `collect`: the thread that
//! waits is one of the pool's threads, so there is nothing to overlap, and one plan is in flight at a time. Host pages
//! are the last ones of the pool: here both are the same memory. [`CpuExecutor`] serves; [`ReferenceExecutor`] runs the same code on the kernels that define correct.

mod kv_capacity;

use std::path::Path;

use weir_kernels::cpu::Isa;
use weir_kernels::kv::PagePool;

pub use kv_capacity::KvCapacity;

use super::{Capacity, Executor, ExecutorError, LayoutId, Ticket, check_plan};
use crate::model::forward::Model;
use crate::model::ops::{CpuOps, Ops, ReferenceOps};
use crate::model::{LoadError, ModelFacts, ModelFile};
use crate::sampling::{Sampler, SeatState};
use crate::sequence::TokenId;
use crate::step::{BlockTables, Page, PlanRow, RowInput, Sample, StepOutput, StepPlan, TokenMask};

/// More threads than any CPU has; a larger number is a mistake in the configuration.
const THREADS_MAX: usize = 1024;
/// Activations and logits for this many rows stay below a few hundred megabytes for every supported model.
const SEATS_MAX: u32 = 1024;
/// As above, for tokens.
const STEP_TOKENS_MAX: u32 = 8192;

/// The dials of a CPU executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// Threads that compute, the caller's included.
    pub threads: usize,
    /// Budget for KV pages, in bytes.
    pub kv_bytes: u64,
    /// Most sequences in a step.
    pub max_seats: u32,
    /// Most new tokens in a step.
    pub max_step_tokens: u32,
    /// A shorter context than the model's own; `None` for the model's.
    pub context_limit: Option<u32>,
    /// Pages beside the pool, for swapping and transfer.
    pub num_host_pages: u32,
}

/// Runs plans with the fast kernels.
pub type CpuExecutor = ModelExecutor<CpuOps>;

/// Runs plans with the kernels that define correct: single precision on dequantised weights, on one thread. For tests.
pub type ReferenceExecutor = ModelExecutor<ReferenceOps>;

/// Runs plans with one set of kernels.
#[derive(Debug)]
pub struct ModelExecutor<O: Ops> {
    model: Model<O>,
    pool: PagePool,
    capacity: Capacity,
    kv_capacity: KvCapacity,
    sampler: Sampler,
    seats: Vec<Option<SeatState>>,
    block_tables: BlockTables,
    submitted: Option<Submitted>,
    next_ticket: u64,
}

/// A plan that waits to be collected.
#[derive(Debug)]
struct Submitted {
    ticket: Ticket,
    plan: StepPlan,
    masks: Vec<Option<TokenMask>>,
}

impl CpuExecutor {
    /// Loads a model file for the best instruction set of this machine.
    ///
    /// # Errors
    /// [`LoadError`] if the file is not a model this build can run, or the KV budget cannot hold one request of full
    /// length and a block for every seat.
    pub fn load(path: &Path, config: &CpuConfig) -> Result<Self, LoadError> {
        Self::with_isa(&ModelFile::open(path)?, config, Isa::detect())
    }

    /// Loads an open model file.
    ///
    /// # Errors
    /// As [`CpuExecutor::load`].
    pub fn load_file(file: &ModelFile, config: &CpuConfig) -> Result<Self, LoadError> {
        Self::with_isa(file, config, Isa::detect())
    }

    fn with_isa(file: &ModelFile, config: &CpuConfig, isa: Isa) -> Result<Self, LoadError> {
        within("threads", config.threads as u64, THREADS_MAX as u64)?;
        Self::with_ops(CpuOps::new(isa, config.threads), file, config)
    }

    /// Name of the instruction set in use: part of what a sequence's exact text depends on.
    pub fn isa_name(&self) -> &'static str {
        self.model.ops().isa().name()
    }
}

impl ReferenceExecutor {
    /// Loads a model file for the reference kernels.
    ///
    /// # Errors
    /// As [`CpuExecutor::load`].
    pub fn load(path: &Path, config: &CpuConfig) -> Result<Self, LoadError> {
        Self::load_file(&ModelFile::open(path)?, config)
    }

    /// Loads an open model file.
    ///
    /// # Errors
    /// As [`CpuExecutor::load`].
    pub fn load_file(file: &ModelFile, config: &CpuConfig) -> Result<Self, LoadError> {
        Self::with_ops(ReferenceOps, file, config)
    }
}

impl<O: Ops> ModelExecutor<O> {
    fn with_ops(ops: O, file: &ModelFile, config: &CpuConfig) -> Result<Self, LoadError> {
        within("max_seats", config.max_seats.into(), SEATS_MAX.into())?;
        within("max_step_tokens", config.max_step_tokens.into(), STEP_TOKENS_MAX.into())?;
        let facts = file.facts();
        let context_limit = config.context_limit.unwrap_or(facts.context_limit);
        within("context_limit", context_limit.into(), facts.context_limit.into())?;
        // The refusal comes before the weights are read: it needs only the facts.
        let kv_capacity =
            KvCapacity::new(facts, O::KV_TYPE, config.kv_bytes, config.max_seats, context_limit)?;
        let model = Model::load(ops, file, config.max_step_tokens as usize, config.max_seats as usize)?;
        let pool = kv_capacity.allocate(config.num_host_pages)?;
        let capacity = Capacity {
            num_pages: kv_capacity.num_pages,
            page_bytes: kv_capacity.page_bytes,
            layout: LayoutId::of(&format!("cpu {:?}", pool.layout())),
            num_layer_groups: 1,
            num_host_pages: config.num_host_pages,
            block_tokens: kv_capacity::BLOCK_TOKENS,
            max_seats: config.max_seats,
            max_step_tokens: config.max_step_tokens,
            max_in_flight: 1,
            context_limit,
            vocab_size: facts.vocab_size,
        };
        tracing::info!(
            model = facts.name.as_deref().unwrap_or("unnamed"),
            dtype = facts.dtype,
            parameters = facts.parameter_count,
            "{kv_capacity}"
        );
        let seats = vec![None; config.max_seats as usize];
        let sampler = Sampler::default();
        let block_tables = BlockTables::new(capacity.max_seats, capacity.num_layer_groups);
        let (submitted, next_ticket) = (None, 0);
        Ok(Self { model, pool, capacity, kv_capacity, sampler, seats, block_tables, submitted, next_ticket })
    }

    /// What the model is.
    pub fn facts(&self) -> &ModelFacts {
        self.model.facts()
    }

    /// How many tokens the KV pool holds, measured and by the formula.
    pub fn kv_capacity(&self) -> &KvCapacity {
        &self.kv_capacity
    }

    /// Logits from which the latest step's `sample`-th sampling row chose, `[vocab_size]`; for tests and measurements.
    /// Panics if `sample` is not below the number of seats.
    pub fn logits(&self, sample: usize) -> &[f32] {
        self.model.logits(sample)
    }

    fn run(&mut self, mut plan: StepPlan, masks: Vec<Option<TokenMask>>) -> StepOutput {
        for setup in plan.seats.drain(..) {
            let seat = setup.seat.0 as usize;
            self.seats[seat] = Some(SeatState::new(setup));
        }
        for copy in &plan.copies {
            self.pool.copy_page(self.pool_page(copy.from), self.pool_page(copy.to));
        }
        if plan.rows.is_empty() {
            return StepOutput::default();
        }
        let tokens = self.input_tokens(&plan);
        self.model.forward(&mut self.pool, &plan, &self.block_tables, &tokens);
        let mut output = StepOutput::default();
        let mut masks = masks.into_iter();
        for (index, row) in plan.rows.iter().filter(|row| row.samples()).enumerate() {
            let mask = if row.sample == Sample::Masked { masks.next().flatten() } else { None };
            let seat = self.seats[row.seat.0 as usize].as_mut().expect("checked at submission");
            let logits = self.model.logits(index);
            let position = row.sample_position();
            let token = self.sampler.sample_seat(logits, seat, mask.as_ref(), position, &mut output.logprobs);
            output.num_tokens.push(u32::from(token.is_some()));
            output.tokens.extend(token);
        }
        output
    }

    fn pool_page(&self, page: Page) -> u32 {
        match page {
            Page::Pool(page) => page,
            Page::Host(page) => self.capacity.num_pages + page,
        }
    }

    /// New tokens of all rows, seats asked for theirs. A seat that has none yet (its sequence ended for want of a
    /// finite logit) gives token 0: nobody reads what follows from it.
    fn input_tokens(&self, plan: &StepPlan) -> Vec<TokenId> {
        let mut tokens = Vec::with_capacity(plan.num_tokens());
        for row in &plan.rows {
            match &row.input {
                RowInput::Tokens(range) => tokens.extend_from_slice(&plan.tokens[range.clone()]),
                RowInput::LastSampled => {
                    let seat = self.seats[row.seat.0 as usize].as_ref();
                    tokens.push(seat.and_then(SeatState::last).unwrap_or(0));
                }
            }
        }
        tokens
    }

    /// Every row's seat has been set up, by this plan or an earlier one, and there is room for the plan.
    fn check_seats(&self, plan: &StepPlan) -> Result<(), ExecutorError> {
        let is_set_up = |row: &PlanRow| {
            self.seats[row.seat.0 as usize].is_some() || plan.seats.iter().any(|setup| setup.seat == row.seat)
        };
        if !plan.rows.iter().all(is_set_up) {
            Err(ExecutorError::InvalidPlan("a seat that was never set up"))
        } else if self.submitted.is_some() {
            Err(ExecutorError::InvalidPlan("more plans in flight than stated"))
        } else {
            Ok(())
        }
    }
}

impl<O: Ops> Executor for ModelExecutor<O> {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, mut plan: StepPlan) -> Result<Ticket, ExecutorError> {
        check_plan(&plan, &self.capacity, &mut self.block_tables)?;
        self.check_seats(&plan).inspect_err(|_| self.block_tables.forget(&plan))?;
        // What the plan shares with the scheduler is let go: its tables grow while this one waits.
        plan.block_tables.clear();
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.submitted = Some(Submitted { ticket, plan, masks: Vec::new() });
        Ok(ticket)
    }

    fn supply_masks(&mut self, ticket: Ticket, masks: Vec<Option<TokenMask>>) -> Result<(), ExecutorError> {
        match &mut self.submitted {
            Some(submitted) if submitted.ticket == ticket && submitted.plan.num_masked() == masks.len() => {
                submitted.masks = masks;
                Ok(())
            }
            _ => Err(ExecutorError::InvalidPlan("masks that no plan in flight waits for")),
        }
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        match self.submitted.take() {
            Some(Submitted { ticket: oldest, plan, masks }) if oldest == ticket => {
                if plan.num_masked() == masks.len() {
                    Ok(self.run(plan, masks))
                } else {
                    Err(ExecutorError::InvalidPlan("collected before its masks were supplied"))
                }
            }
            other => {
                self.submitted = other;
                Err(ExecutorError::UnknownTicket(ticket))
            }
        }
    }

    fn host_page(&mut self, page: u32) -> &mut [u8] {
        assert!(page < self.capacity.num_host_pages, "no such host page");
        let page = self.pool_page(Page::Host(page));
        self.pool.page_mut(page)
    }
}

fn within(what: &'static str, actual: u64, limit: u64) -> Result<(), LoadError> {
    if (1..=limit).contains(&actual) { Ok(()) } else { Err(LoadError::Config { what, actual, limit }) }
}
