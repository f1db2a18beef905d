//! The seam between the scheduler and whatever runs a forward pass.
//!
//! An executor owns the weights, the memory of the KV pages, the seats and the sampling of its own logits; all of it stays
//! on the device between steps. It knows nothing of queues, tenants or stop conditions, and it never decides which page
//! belongs to whom: it writes and reads exactly the pages that a plan names.

use crate::sequence::TokenId;
use crate::step::{BlockTables, Page, StepOutput, StepPlan, TokenMask};

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod sim;

/// What an executor can hold and do. Constant from load to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// KV pages in the pool; page ids are `0..num_pages`, however many devices hold them.
    pub num_pages: u32,
    /// Bytes of one page: a block of positions of one layer group, contiguous.
    pub page_bytes: u64,
    /// What the bytes of a page mean.
    pub layout: LayoutId,
    /// Groups of layers that have a block table of their own; all have pages of the same size from the same pool.
    pub num_layer_groups: u32,
    /// Pages in host memory, for swapping and transfer.
    pub num_host_pages: u32,
    /// Token positions that one page holds (16).
    pub block_tokens: u32,
    /// Most rows in one plan, so the most sequences that run at once.
    pub max_seats: u32,
    /// Most new tokens in one plan over all rows.
    pub max_step_tokens: u32,
    /// Plans that may be submitted and not yet collected. With two, the next one is made and launched while this one
    /// runs; one for a device that has nothing to gain from it.
    pub max_in_flight: u32,
    /// Most positions one sequence may have, prompt and output together.
    pub context_limit: u32,
    /// Token ids are `0..vocab_size`.
    pub vocab_size: u32,
}

/// Names a way to lay keys and values out in a page. Bytes may go from one executor's pages to another's only if their
/// layouts are equal; nobody but an executor looks into them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayoutId(pub u64);

impl LayoutId {
    /// The layout that a text describes: backend, element type and shape (FNV-1a, 64 bits).
    pub fn of(description: &str) -> Self {
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self(description.bytes().fold(0xcbf2_9ce4_8422_2325, fold))
    }
}

/// Names a submitted plan until it is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// Runs plans.
///
/// Plans take effect in the order submitted, and tickets are collected in that order. Between `submit` and `collect` the
/// engine gives no page that the plan names to anyone else. Loading weights and sizing the pool is each executor's
/// constructor: it refuses what does not fit, so that nothing runs out of memory later.
pub trait Executor: Send {
    /// Limits that plans must keep. Must not change during the executor's life.
    fn capacity(&self) -> Capacity;

    /// Starts a step, and may return before it has run: every row writes its new tokens' keys and values, and attends
    /// over positions `0..=own`; then each row that samples has its token chosen and kept in its seat. Nothing in it waits
    /// for the host but the rows that a mask is promised for, and nothing waits for those.
    ///
    /// # Errors
    /// [`ExecutorError`] if the plan was not started. None of its effects may be relied on.
    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError>;

    /// Gives the masks of a step's masked rows, in the order of the rows. Called once for a plan that has any, after the
    /// tokens they follow from are collected and before anything else is submitted. `None` allows every token.
    ///
    /// # Errors
    /// [`ExecutorError`] if they do not belong to the step that waits for masks.
    fn supply_masks(&mut self, ticket: Ticket, masks: Vec<Option<TokenMask>>) -> Result<(), ExecutorError>;

    /// Waits for a step: the one place where the host does.
    ///
    /// # Errors
    /// [`ExecutorError`] if the step failed. Contents of the pages it wrote are then unknown, and every ticket still
    /// outstanding is void.
    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError>;

    /// Bytes of a host page, `[page_bytes]`. Steps that copy to it are collected first.
    fn host_page(&mut self, page: u32) -> &mut [u8];
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
    /// The device or its driver failed. Nothing it holds can be relied on any more.
    #[error("the device failed to run the step")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl ExecutorError {
    /// True if no later step can succeed: the process should end, so that others take over.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Device(_))
    }
}

/// Takes a plan's tables in, and verifies it against an executor's limits.
///
/// # Errors
/// [`ExecutorError::InvalidPlan`] or [`ExecutorError::UnknownToken`].
pub(crate) fn check_plan(
    plan: &StepPlan,
    capacity: &Capacity,
    tables: &mut BlockTables,
) -> Result<(), ExecutorError> {
    check_tables(plan, capacity)?;
    plan.block_tables.iter().for_each(|table| tables.set(table));
    check_rest(plan, capacity, tables).inspect_err(|_| tables.forget(plan))
}

/// The part of it that comes before a plan's tables are taken in.
pub(crate) fn check_tables(plan: &StepPlan, capacity: &Capacity) -> Result<(), ExecutorError> {
    plan.check_tables(capacity.max_seats, capacity.num_layer_groups, capacity.num_pages)
        .map_err(ExecutorError::InvalidPlan)
}

/// The part that comes after.
pub(crate) fn check_rest(
    plan: &StepPlan,
    capacity: &Capacity,
    tables: &BlockTables,
) -> Result<(), ExecutorError> {
    let &Capacity { num_pages, block_tokens, max_seats, max_step_tokens, context_limit, vocab_size, .. } =
        capacity;
    plan.check(max_step_tokens, max_seats, block_tokens, tables).map_err(ExecutorError::InvalidPlan)?;
    if let Some(&token) = plan.tokens.iter().find(|token| **token >= vocab_size) {
        return Err(ExecutorError::UnknownToken { token, vocab_size });
    }
    if plan.rows.iter().any(|row| row.end_position() > context_limit) {
        return Err(ExecutorError::InvalidPlan("a row beyond the context limit"));
    }
    let exists = |page: Page| match page {
        Page::Pool(page) => page < num_pages,
        Page::Host(page) => page < capacity.num_host_pages,
    };
    if plan.copies.iter().any(|copy| !exists(copy.from) || !exists(copy.to)) {
        return Err(ExecutorError::InvalidPlan("a copy names a page outside the pool"));
    }
    Ok(())
}
