//! What the engine counts and what it holds, for reports.

/// Totals since start; they only grow (`rows_last` aside).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Forward passes executed.
    pub steps: u64,
    /// Rows over all steps; divided by `steps` it is the mean batch occupancy.
    pub rows_sum: u64,
    /// Most rows in one step.
    pub rows_max: u32,
    /// Rows of the last step.
    pub rows_last: u32,
    /// Tokens computed to catch up with prompts (and with recomputed tokens).
    pub prefill_tokens: u64,
    /// The part of `prefill_tokens` that had been computed before and was lost to preemption.
    pub recomputed_tokens: u64,
    /// Prompt tokens served from the prefix cache.
    pub cached_prompt_tokens: u64,
    /// Tokens computed one at a time after a prompt was complete.
    pub decode_tokens: u64,
    /// Tokens sampled and counted.
    pub generated_tokens: u64,
    /// Sequences that lost their pages to others.
    pub preemptions: u64,
    /// Sequences given a seat, each counted once however often it was preempted.
    pub admitted: u64,
    /// Sequences ended by a stop condition.
    pub finished_stop: u64,
    /// Sequences ended by their length.
    pub finished_length: u64,
    /// Sequences cancelled.
    pub finished_cancelled: u64,
    /// Sequences ended by a failed step.
    pub finished_error: u64,
}

/// What the engine holds at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// Sequences with a seat.
    pub running: u32,
    /// Those of them that are of class batch.
    pub running_batch: u32,
    /// Seats in all.
    pub seats: u32,
    /// Interactive sequences that wait for a seat or for pages.
    pub waiting_interactive: u32,
    /// Batch sequences that wait.
    pub waiting_batch: u32,
    /// Pages that hold nothing.
    pub free_blocks: u32,
    /// Pages that no sequence references, kept for the prefix they hold; as good as free.
    pub cached_blocks: u32,
    /// Pages that running sequences reference.
    pub referenced_blocks: u32,
    /// Tokens of waiting and running sequences that are to be computed before their next token.
    pub queued_prefill_tokens: u64,
}

impl EngineLoad {
    /// Sequences that are not over.
    pub fn sequences(&self) -> u32 {
        self.running + self.waiting_interactive + self.waiting_batch
    }
}
