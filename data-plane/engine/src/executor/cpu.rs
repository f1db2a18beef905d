//! Runs plans on this machine's CPUs.
//!
//! Owns the loaded model, the pool of KV pages and the sampler. A plan runs inside `submit`: the thread that submits is
//! one of the pool's threads, so nothing would be gained by returning earlier. It never decides which page belongs to
//! whom. [`CpuExecutor`] serves; [`ReferenceExecutor`] runs the same code on the kernels that define correct.

mod kv_capacity;

use std::collections::VecDeque;
use std::path::Path;

use weir_kernels::cpu::Isa;
use weir_kernels::kv::PagePool;

pub use kv_capacity::KvCapacity;

use super::{Capacity, Executor, ExecutorError, Ticket};
use crate::model::forward::Model;
use crate::model::ops::{CpuOps, Ops, ReferenceOps};
use crate::model::{LoadError, ModelFacts, ModelFile};
use crate::sampling::Sampler;
use crate::step::{StepOutput, StepPlan};

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
    finished: VecDeque<(Ticket, StepOutput)>,
    next_ticket: u64,
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
        let pool = kv_capacity.allocate()?;
        let capacity = Capacity {
            num_pages: kv_capacity.num_pages,
            page_bytes: kv_capacity.page_bytes,
            block_tokens: kv_capacity::BLOCK_TOKENS,
            max_seats: config.max_seats,
            max_step_tokens: config.max_step_tokens,
            context_limit,
            vocab_size: facts.vocab_size,
        };
        tracing::info!(
            model = facts.name.as_deref().unwrap_or("unnamed"),
            dtype = facts.dtype,
            parameters = facts.parameter_count,
            "{kv_capacity}"
        );
        let finished = VecDeque::new();
        Ok(Self { model, pool, capacity, kv_capacity, sampler: Sampler::default(), finished, next_ticket: 0 })
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

    fn check(&self, plan: &StepPlan) -> Result<(), ExecutorError> {
        let Capacity {
            num_pages, block_tokens, max_seats, max_step_tokens, context_limit, vocab_size, ..
        } = self.capacity;
        plan.check(max_step_tokens, max_seats, block_tokens).map_err(ExecutorError::InvalidPlan)?;
        if let Some(&token) = plan.tokens.iter().find(|token| **token >= vocab_size) {
            return Err(ExecutorError::UnknownToken { token, vocab_size });
        }
        for row in &plan.rows {
            if row.end_position() > context_limit {
                return Err(ExecutorError::InvalidPlan("a row beyond the context limit"));
            }
            if row.block_table.blocks().iter().any(|page| *page >= num_pages) {
                return Err(ExecutorError::InvalidPlan("a block table names a page outside the pool"));
            }
        }
        if plan.copies.iter().any(|copy| copy.from >= num_pages || copy.to >= num_pages) {
            return Err(ExecutorError::InvalidPlan("a copy names a page outside the pool"));
        }
        Ok(())
    }

    fn run(&mut self, plan: &StepPlan) -> StepOutput {
        for copy in &plan.copies {
            self.pool.copy_page(copy.from, copy.to);
        }
        self.model.forward(&mut self.pool, plan);
        let sampling_rows = plan.rows.iter().filter_map(|row| Some((row, row.sample.as_ref()?)));
        let sampled = sampling_rows
            .enumerate()
            .map(|(index, (row, params))| {
                self.sampler.sample(self.model.logits(index), params, row.sample_position())
            })
            .collect();
        StepOutput { sampled }
    }
}

impl<O: Ops> Executor for ModelExecutor<O> {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        self.check(&plan)?;
        let output = self.run(&plan);
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.finished.push_back((ticket, output));
        Ok(ticket)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        let is_next = self.finished.front().is_some_and(|(oldest, _)| *oldest == ticket);
        let finished = if is_next { self.finished.pop_front() } else { None };
        finished.map(|(_, output)| output).ok_or(ExecutorError::UnknownTicket(ticket))
    }
}

fn within(what: &'static str, actual: u64, limit: u64) -> Result<(), LoadError> {
    if (1..=limit).contains(&actual) { Ok(()) } else { Err(LoadError::Config { what, actual, limit }) }
}
