//! One forward pass as plain data: what the scheduler hands to an executor, and what comes back.
//!
//! The plan is the joint of the engine: a scheduler is tested with no model, a model with no scheduler. It holds nothing
//! that is known only after an earlier step: a row may take its input from its seat, where the device keeps the token
//! sampled last, so that the next step is submitted before this one has been collected.

mod block_tables;

pub use block_tables::BlockTables;

use std::ops::Range;
use std::sync::Arc;

use crate::kv_cache::{BlockId, BlockTable};
use crate::sampling::SamplingParams;
use crate::sequence::{SequenceId, TokenId};

/// One forward pass over a ragged batch.
///
/// It takes effect in this order: seats, tables, copies, rows. Invariants, held by the scheduler ([`StepPlan::check`] verifies
/// what the plan alone shows):
/// - each sequence has at most one row, each row one seat, and each row computes at least one token;
/// - the rows' token ranges tile `tokens` in order, and the new tokens are at most the step's budget;
/// - a row's block tables, told of in this plan or an earlier one, cover its positions `0..end_position`;
/// - each page that a row writes is referenced by that row's sequence alone.
#[derive(Debug, Default)]
pub struct StepPlan {
    /// Sequences that take a seat with this step.
    pub seats: Vec<SeatSetup>,
    /// Block tables of rows in this plan that are new, or have changed since the last plan that had them. An executor keeps
    /// those of all seats ([`BlockTables`]), so that what a step costs the host does not grow with the context.
    pub block_tables: Vec<TableUpdate>,
    /// Page copies to make before any row runs, in order: those from and to host memory (swap, transfer), then those within
    /// the pool (copy-on-write), of which there are at most two for each row.
    pub copies: Vec<PageCopy>,
    /// The new tokens of all rows that know theirs, one row after another.
    pub tokens: Vec<TokenId>,
    /// The rows. Those that sample do so in this order in [`StepOutput`].
    pub rows: Vec<PlanRow>,
}

/// The pages that a seat has from now on in one layer group.
#[derive(Clone, Debug)]
pub struct TableUpdate {
    /// Whose.
    pub seat: Seat,
    /// For which layers.
    pub layer_group: u32,
    /// All of them, in order of position.
    pub blocks: BlockTable,
}

/// Index of what a device keeps for a running sequence: the token sampled last, its sampling parameters, its token
/// counts. Below the executor's `max_seats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seat(pub u32);

/// Gives a seat to a sequence: whatever the device kept there for an earlier one is replaced.
#[derive(Clone, Debug)]
pub struct SeatSetup {
    /// Which seat.
    pub seat: Seat,
    /// Whose it is now.
    pub sequence: SequenceId,
    /// How its tokens are chosen.
    pub sampling: SamplingParams,
    /// Added to the logits of these tokens.
    pub logit_bias: Arc<[(TokenId, f32)]>,
    /// Prompt tokens, then generated ones, from which penalties count; empty unless a penalty is asked for.
    pub history: Vec<TokenId>,
    /// How many of `history` are prompt.
    pub prompt_tokens: u32,
}

/// Where a row's new tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowInput {
    /// From [`StepPlan::tokens`], at this range.
    Tokens(Range<usize>),
    /// One token: the one that this row's seat sampled last, in an earlier step that may still be running.
    LastSampled,
}

/// The share of one sequence in a step.
#[derive(Clone, Debug)]
pub struct PlanRow {
    /// Whose row this is.
    pub sequence: SequenceId,
    /// Its seat.
    pub seat: Seat,
    /// Its new tokens.
    pub input: RowInput,
    /// Absolute position of the first new token; positions before it are already in the pages.
    pub start_position: u32,
    /// Whether, and how, the token after this row's last one is chosen, at [`PlanRow::sample_position`].
    pub sample: Sample,
}

/// What becomes of a row's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// Nothing: more of the prompt follows in a later step.
    No,
    /// A token is chosen as the seat's parameters say.
    Token,
    /// The same, from the tokens that a mask allows: see [`crate::Executor::supply_masks`].
    Masked,
}

/// Copy all bytes of one page to another, which nobody else references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Page to read.
    pub from: Page,
    /// Page to write.
    pub to: Page,
}

/// A page by where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Page {
    /// In the device's pool.
    Pool(BlockId),
    /// In host memory that the executor owns: swapped out, or on its way to or from another executor.
    Host(u32),
}

/// Tokens that may be chosen: bit `token % 32` of word `token / 32`, `[vocab_size / 32, rounded up]`.
pub type TokenMask = Arc<[u32]>;

/// What a step gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// Tokens of each sampling row, in the order of the rows: one more than the drafts it accepted. Zero if no token
    /// could be chosen (logits without one finite number): that sequence ends with an error, the others go on.
    pub num_tokens: Vec<u32>,
    /// Those tokens, one row after another.
    pub tokens: Vec<TokenId>,
    /// For each token of the rows that asked for it, in the same order.
    pub logprobs: Vec<TokenLogprobs>,
}

/// Natural logarithms of probabilities under the model's own logits, before temperature, penalties, bias and masks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token that was chosen.
    pub chosen: f32,
    /// The most likely tokens, likeliest first, the lower id on a tie; as many as were asked for.
    pub top: Vec<(TokenId, f32)>,
}

impl PlanRow {
    /// Number of new tokens in this row.
    #[inline]
    pub fn num_tokens(&self) -> usize {
        match &self.input {
            RowInput::Tokens(range) => range.len(),
            RowInput::LastSampled => 1,
        }
    }

    /// One past the last position that this row computes.
    #[inline]
    pub fn end_position(&self) -> u32 {
        let num_tokens = u32::try_from(self.num_tokens()).expect("a row is far shorter than 2^32 tokens");
        self.start_position + num_tokens
    }

    /// Absolute position of the token to be sampled, the counter of its noise.
    pub fn sample_position(&self) -> u32 {
        self.end_position()
    }

    /// True if a token is chosen after this row.
    #[inline]
    pub fn samples(&self) -> bool {
        self.sample != Sample::No
    }
}

impl StepPlan {
    /// New tokens over all rows.
    pub fn num_tokens(&self) -> usize {
        self.rows.iter().map(PlanRow::num_tokens).sum()
    }

    /// Rows that sample.
    pub fn num_samples(&self) -> usize {
        self.rows.iter().filter(|row| row.samples()).count()
    }

    /// Rows that wait for a mask.
    pub fn num_masked(&self) -> usize {
        self.rows.iter().filter(|row| row.sample == Sample::Masked).count()
    }

    /// Verifies that the plan's tables have a place among those of an executor, and pages in its pool.
    ///
    /// # Errors
    /// A fixed text that names the broken invariant.
    pub fn check_tables(
        &self,
        max_rows: u32,
        num_layer_groups: u32,
        num_pages: u32,
    ) -> Result<(), &'static str> {
        for table in &self.block_tables {
            if table.seat.0 >= max_rows || table.layer_group >= num_layer_groups {
                return Err("a block table of a seat or a layer group that does not exist");
            }
            if table.blocks.bound() > num_pages {
                return Err("a block table names a page outside the pool");
            }
        }
        Ok(())
    }

    /// Verifies what else of its invariants the plan can show, with the tables that it and earlier ones told of.
    ///
    /// # Errors
    /// A fixed text that names the broken invariant.
    pub fn check(
        &self,
        max_tokens: u32,
        max_rows: u32,
        block_tokens: u32,
        tables: &BlockTables,
    ) -> Result<(), &'static str> {
        if self.num_tokens() > max_tokens as usize {
            return Err("more new tokens than the step's budget");
        }
        if self.rows.len() > max_rows as usize {
            return Err("more rows than seats");
        }
        let mut next_token = 0;
        for row in &self.rows {
            if row.seat.0 >= max_rows {
                return Err("a seat that does not exist");
            }
            if let RowInput::Tokens(range) = &row.input {
                if range.is_empty() || range.start != next_token {
                    return Err("rows do not tile the tokens");
                }
                next_token = range.end;
            }
            let needed_blocks = row.end_position().div_ceil(block_tokens) as usize;
            if tables.len(row.seat) < needed_blocks {
                return Err("a block table is shorter than its row");
            }
        }
        if self.seats.iter().any(|setup| setup.seat.0 >= max_rows) {
            return Err("a seat that does not exist");
        }
        if next_token != self.tokens.len() {
            return Err("tokens without a row");
        }
        let is_within_pool = |copy: &PageCopy| matches!((copy.from, copy.to), (Page::Pool(_), Page::Pool(_)));
        if !self.copies.is_sorted_by_key(is_within_pool) {
            return Err("a copy through host memory after one within the pool");
        }
        if self.copies.iter().filter(|copy| is_within_pool(copy)).count() > 2 * max_rows as usize {
            return Err("more copies within the pool than two for each row");
        }
        Ok(())
    }
}
