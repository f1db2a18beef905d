//! The seam between the scheduler and whatever runs a forward pass.
//!
//! An executor owns the weights, the memory of the KV pages and the sampling of its own logits. It knows
//! nothing of queues, tenants or stop conditions, and it never decides which page belongs to whom: it writes
//! and reads exactly the pages that a plan names.

use crate::sequence::TokenId;
use crate::step::{StepOutput, StepPlan};

pub mod cpu;

/// What an executor can hold and do. Constant from load to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// KV pages in the pool; page ids are `0..num_pages`.
    pub num_pages: u32,
    /// Bytes of one page over all layers, for reports only.
    pub page_bytes: u64,
    /// Token positions that one page holds (16).
    pub block_tokens: u32,
    /// Most rows in one plan, so the most sequences that run at once.
    pub max_seats: u32,
    /// Most new tokens in one plan over all rows.
    pub max_step_tokens: u32,
    /// Most positions one sequence may have, prompt and output together.
    pub context_limit: u32,
    /// Token ids are `0..vocab_size`.
    pub vocab_size: u32,
}

/// Names a submitted plan until it is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// Runs plans. State (weights, KV pages) stays on the device between steps.
///
/// Plans take effect in the order submitted, and tickets are collected in that order. Between `submit` and
/// `collect` the engine neither reuses nor reads a page that the plan names.
pub trait Executor: Send {
    /// Limits that plans must keep. Must not change during the executor's life.
    fn capacity(&self) -> Capacity;

    /// Starts a step, and may return before it has run. The page copies of the plan come first, then every
    /// row writes its new tokens' keys and values, and attends over positions `0..=own`.
    ///
    /// # Errors
    /// [`ExecutorError`] if the plan was not started. None of its effects may be relied on.
    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError>;

    /// Waits for a step: one entry for each sampling row, in the order of the plan's rows.
    ///
    /// # Errors
    /// [`ExecutorError`] if the step failed. Contents of the pages it wrote are then unknown.
    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError>;
}

/// Why a step did not happen.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// The ticket is not the oldest one outstanding.
    #[error("ticket {} is not the next one to collect", .0.0)]
    UnknownTicket(Ticket),
    /// The plan breaks a limit of [`Capacity`]; a bug in the caller.
    #[error("the plan breaks the executor's limits: {0}")]
    InvalidPlan(&'static str),
    /// A token id is outside the vocabulary.
    #[error("token {token} is outside a vocabulary of {vocab_size}")]
    UnknownToken {
        /// The offending id.
        token: TokenId,
        /// Size of the vocabulary.
        vocab_size: u32,
    },
    /// The device or its driver failed.
    #[error("the device failed to run the step")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
}
