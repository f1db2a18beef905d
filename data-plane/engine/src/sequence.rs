//! A sequence: one prompt and the tokens generated after it, from arrival to its last event.
//!
//! Plain data owned by the scheduler: no channels, no locks, no clocks. What the outside sees of it is in
//! [`SequenceRequest`] on the way in and a [`Sink`] on the way out.

mod request;
mod sink;

use std::sync::Arc;

pub use request::{Class, Commit, SequenceRequest, TenantIndex, Verdict};
pub use sink::{Advance, FinishReason, SequenceEvent, SequenceUsage, Sink};

use crate::kv_cache::{BlockHash, BlockTable, hash_block};
use crate::sampling::SamplingParams;
use crate::scheduler::AccountId;
use crate::step::{Seat, SeatSetup};

/// Index of a token in the model's vocabulary.
pub type TokenId = u32;

/// Names a sequence within one engine. Grows with arrival and is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// What the scheduler knows of a sequence. It holds pages as long as it has a seat, and waits otherwise.
pub(crate) struct Sequence<C> {
    pub(crate) id: SequenceId,
    pub(crate) class: Class,
    /// Of its tenant.
    pub(crate) account: AccountId,
    pub(crate) sampling: SamplingParams,
    pub(crate) logit_bias: Arc<[(TokenId, f32)]>,
    pub(crate) is_constrained: bool,
    pub(crate) stop_tokens: Vec<TokenId>,
    pub(crate) commit: C,
    max_tokens: u32,

    /// Prompt, then generated tokens.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) prompt_tokens: u32,
    /// Positions whose keys and values lie in the block table's pages. Catches up with `tokens`.
    pub(crate) num_computed_tokens: u32,
    /// Positions that will be computed when all submissions in flight are collected.
    pub(crate) num_submitted_tokens: u32,
    /// The furthest `num_computed_tokens` ever was; positions below it are recomputed, not computed.
    pub(crate) furthest_computed: u32,
    /// Tokens that the plan in the making computes.
    pub(crate) planned_tokens: u32,
    /// Submissions in flight that name it, and how many of them sample a token for it.
    pub(crate) in_flight: u32,
    pub(crate) pending_samples: u32,
    /// Gives up its seat as soon as no submission names it.
    pub(crate) is_yielding: bool,
    /// Set while it runs.
    pub(crate) seat: Option<Seat>,
    /// The next plan sets its seat up.
    pub(crate) is_newly_seated: bool,

    pub(crate) block_table: BlockTable,
    /// The next plan tells of its table.
    pub(crate) has_new_table: bool,
    /// The block that it writes and holds alone already, so that nobody has to look again for each token.
    pub(crate) own_block: Option<u32>,
    /// Keys of the full blocks of `tokens`, as far as they were needed.
    chain: Vec<BlockHash>,
    salt: BlockHash,
    /// Leading blocks of the table that the prefix index knows.
    pub(crate) published_blocks: u32,

    /// Prompt tokens taken from the cache, each counted once.
    pub(crate) cached_prompt_tokens: u32,
    /// Has had a seat, so its tenant was charged for its prompt.
    pub(crate) was_admitted: bool,
    pub(crate) preemptions: u32,
    /// Sequences admitted past this one while it did not fit.
    pub(crate) bypassed: u32,
    /// Step at which it last got its seat.
    pub(crate) seated_at_step: u64,
}

impl<C> Sequence<C> {
    /// A waiting sequence. Hashes the prompt's full blocks, once.
    pub(crate) fn new(
        id: SequenceId,
        request: SequenceRequest,
        account: AccountId,
        commit: C,
        block_tokens: u32,
    ) -> Self {
        let prompt_tokens = u32::try_from(request.prompt.len()).expect("checked against the context limit");
        let mut sequence = Self {
            id,
            class: request.class,
            account,
            sampling: request.sampling,
            logit_bias: request.logit_bias.into(),
            is_constrained: request.is_constrained,
            stop_tokens: request.stop_tokens,
            commit,
            max_tokens: request.max_tokens,
            tokens: request.prompt,
            prompt_tokens,
            num_computed_tokens: 0,
            num_submitted_tokens: 0,
            furthest_computed: 0,
            planned_tokens: 0,
            in_flight: 0,
            pending_samples: 0,
            is_yielding: false,
            seat: None,
            is_newly_seated: false,
            block_table: BlockTable::default(),
            has_new_table: false,
            own_block: None,
            chain: Vec::with_capacity((prompt_tokens / block_tokens) as usize),
            salt: BlockHash(request.cache_salt),
            published_blocks: 0,
            cached_prompt_tokens: 0,
            was_admitted: false,
            preemptions: 0,
            bypassed: 0,
            seated_at_step: 0,
        };
        sequence.extend_chain(prompt_tokens / block_tokens, block_tokens);
        sequence
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("bounded by the context limit")
    }

    /// Its length when all submissions in flight are collected, unless one of their tokens ends it.
    #[inline]
    pub(crate) fn expected_len(&self) -> u32 {
        self.len() + self.pending_samples
    }

    /// Tokens to submit before the next one can be sampled: none if it will be over, or gives up its seat, when what is
    /// in flight is collected.
    #[inline]
    pub(crate) fn remaining(&self) -> u32 {
        let is_over = self.generated_tokens() + self.pending_samples >= self.max_tokens;
        if is_over || self.is_yielding { 0 } else { self.expected_len() - self.num_submitted_tokens }
    }

    /// One token behind: nothing but the token sampled last is to be computed.
    #[inline]
    pub(crate) fn is_decoding(&self) -> bool {
        self.remaining() == 1
    }

    #[inline]
    pub(crate) fn generated_tokens(&self) -> u32 {
        self.len() - self.prompt_tokens
    }

    pub(crate) fn reached_max_tokens(&self) -> bool {
        self.generated_tokens() >= self.max_tokens
    }

    /// What an executor must know to sample for it.
    pub(crate) fn seat_setup(&self, seat: Seat) -> SeatSetup {
        SeatSetup {
            seat,
            sequence: self.id,
            sampling: self.sampling,
            logit_bias: Arc::clone(&self.logit_bias),
            history: if self.sampling.penalizes() { self.tokens.clone() } else { Vec::new() },
            prompt_tokens: self.prompt_tokens,
        }
    }

    /// Positions that will have been written when `max_tokens` are generated: the last one is never computed.
    pub(crate) fn final_positions(&self) -> u32 {
        self.prompt_tokens + self.max_tokens - 1
    }

    /// Keys of the blocks that may be taken from the cache: full ones, and never the last token's, which must
    /// be computed to give logits.
    pub(crate) fn cacheable_chain(&self, block_tokens: u32) -> &[BlockHash] {
        let num_blocks = ((self.len() - 1) / block_tokens) as usize;
        &self.chain[..num_blocks.min(self.chain.len())]
    }

    /// The key of a full block.
    pub(crate) fn block_hash(&mut self, block_index: u32, block_tokens: u32) -> BlockHash {
        self.extend_chain(block_index + 1, block_tokens);
        self.chain[block_index as usize]
    }

    /// How far the prompt ever got, computed or cached.
    pub(crate) fn prompt_progress(&self) -> u32 {
        self.furthest_computed.min(self.prompt_tokens)
    }

    /// Takes a seat and its pages, of which the leading `cached_blocks` are computed already.
    pub(crate) fn take_seat(
        &mut self,
        seat: Seat,
        block_table: BlockTable,
        cached_blocks: u32,
        block_tokens: u32,
    ) -> u32 {
        self.block_table = block_table;
        self.published_blocks = cached_blocks;
        self.num_computed_tokens = cached_blocks * block_tokens;
        self.num_submitted_tokens = self.num_computed_tokens;
        self.seat = Some(seat);
        self.is_newly_seated = true;
        self.has_new_table = true;
        let newly_cached =
            self.num_computed_tokens.min(self.prompt_tokens).saturating_sub(self.furthest_computed);
        self.cached_prompt_tokens += newly_cached;
        self.furthest_computed = self.furthest_computed.max(self.num_computed_tokens);
        newly_cached
    }

    /// Gives its seat and its pages up; all it knows is its tokens. `None` if it waits.
    pub(crate) fn leave_seat(&mut self) -> Option<(Seat, BlockTable)> {
        self.num_computed_tokens = 0;
        self.num_submitted_tokens = 0;
        self.planned_tokens = 0;
        self.published_blocks = 0;
        self.own_block = None;
        self.is_yielding = false;
        Some((self.seat.take()?, std::mem::take(&mut self.block_table)))
    }

    pub(crate) fn has_seat(&self) -> bool {
        self.seat.is_some()
    }

    pub(crate) fn usage(&self) -> SequenceUsage {
        SequenceUsage {
            prompt_tokens: self.prompt_tokens,
            cached_prompt_tokens: self.cached_prompt_tokens,
            computed_prompt_tokens: self.prompt_progress() - self.cached_prompt_tokens,
            generated_tokens: self.generated_tokens(),
            preemptions: self.preemptions,
        }
    }

    fn extend_chain(&mut self, num_blocks: u32, block_tokens: u32) {
        while self.chain.len() < num_blocks as usize {
            let start = self.chain.len() * block_tokens as usize;
            let parent = self.chain.last().unwrap_or(&self.salt);
            let hash = hash_block(parent, &self.tokens[start..start + block_tokens as usize]);
            self.chain.push(hash);
        }
    }
}
