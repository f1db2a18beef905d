//! One forward pass as plain data: what the scheduler hands to an executor, and what comes back.
//!
//! The plan is the joint of the engine: a scheduler is tested with no model, a model with no scheduler.

use std::ops::Range;

use crate::kv_cache::{BlockId, BlockTable};
use crate::sampling::SamplingParams;
use crate::sequence::{SequenceId, TokenId};

/// One forward pass over a ragged batch.
///
/// Invariants, held by the scheduler (`check` verifies them):
/// - each sequence has at most one row, and each row computes at least one token;
/// - the rows' token ranges tile `tokens` in order, and `tokens.len()` is at most the step's budget;
/// - a row's block table covers its positions `0..start_position + num_tokens`;
/// - each page that a row writes is referenced by that row's sequence alone.
#[derive(Debug, Default)]
pub struct StepPlan {
    /// Page copies to make before any row runs (copy-on-write), in order.
    pub copies: Vec<PageCopy>,
    /// The new tokens of all rows, one row after another.
    pub tokens: Vec<TokenId>,
    /// The rows. Their order is the order of [`StepOutput::sampled`].
    pub rows: Vec<PlanRow>,
}

/// The share of one sequence in a step.
#[derive(Clone, Debug)]
pub struct PlanRow {
    /// Whose row this is.
    pub sequence: SequenceId,
    /// Where this row's new tokens lie in [`StepPlan::tokens`].
    pub tokens: Range<usize>,
    /// Absolute position of the first new token; positions before it are already in the pages.
    pub start_position: u32,
    /// Pages of the sequence; position `p` lies in page `block_table.blocks()[p / block_tokens]`, at slot
    /// `p % block_tokens`. It may hold more pages than this step needs.
    pub block_table: BlockTable,
    /// Set if the token after this row's last one is to be sampled, at [`PlanRow::sample_position`].
    pub sample: Option<SamplingParams>,
}

/// Copy all bytes of one page to another, which nobody else references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Page to read.
    pub from: BlockId,
    /// Page to write.
    pub to: BlockId,
}

/// What a step gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepOutput {
    /// One entry for each row with `sample` set, in the order of the rows. `None` if no token could be chosen
    /// (logits without one finite number): that sequence ends with an error, the others go on.
    pub sampled: Vec<Option<TokenId>>,
}

impl PlanRow {
    /// Number of new tokens in this row.
    pub fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// One past the last position that this row computes.
    pub fn end_position(&self) -> u32 {
        let num_tokens = u32::try_from(self.tokens.len()).expect("a row is far shorter than 2^32 tokens");
        self.start_position + num_tokens
    }

    /// Absolute position of the token to be sampled, the counter of its noise.
    pub fn sample_position(&self) -> u32 {
        self.end_position()
    }
}

impl StepPlan {
    /// New tokens of one row.
    pub fn row_tokens(&self, row: &PlanRow) -> &[TokenId] {
        &self.tokens[row.tokens.clone()]
    }

    /// Rows that sample, so the length of the step's output.
    pub fn num_samples(&self) -> usize {
        self.rows.iter().filter(|row| row.sample.is_some()).count()
    }

    /// Verifies what the plan alone can show of its invariants.
    ///
    /// # Errors
    /// A fixed text that names the broken invariant.
    pub fn check(&self, max_tokens: u32, max_rows: u32, block_tokens: u32) -> Result<(), &'static str> {
        if self.tokens.len() > max_tokens as usize {
            return Err("more new tokens than the step's budget");
        }
        if self.rows.len() > max_rows as usize {
            return Err("more rows than seats");
        }
        let mut next_token = 0;
        for row in &self.rows {
            if row.tokens.is_empty() || row.tokens.start != next_token {
                return Err("rows do not tile the tokens");
            }
            next_token = row.tokens.end;
            let needed_blocks = row.end_position().div_ceil(block_tokens) as usize;
            if row.block_table.blocks().len() < needed_blocks {
                return Err("a block table is shorter than its row");
            }
        }
        if next_token != self.tokens.len() {
            return Err("tokens without a row");
        }
        Ok(())
    }
}
