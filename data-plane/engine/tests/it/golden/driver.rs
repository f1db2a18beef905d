//! Drives an executor by hand, without a scheduler: which tokens of which sequences are in a step is the test's choice.

use std::ops::Range;
use std::sync::Arc;

use weir_engine::executor::cpu::ModelExecutor;
use weir_engine::kv_cache::{BlockId, BlockTable};
use weir_engine::model::ops::Ops;
use weir_engine::{
    Executor, PlanRow, RowInput, Sample, SamplingParams, Seat, SeatSetup, SequenceId, StepPlan, TableUpdate,
    TokenId,
};

const BLOCK_TOKENS: usize = 16;

/// A sequence whose pages the test has chosen.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) pages: Vec<BlockId>,
}

impl Lane {
    pub(crate) fn new(tokens: &[TokenId], pages: impl Iterator<Item = BlockId>) -> Self {
        Self { tokens: tokens.to_vec(), pages: pages.collect() }
    }
}

/// The share of a lane in a step: these positions, of which the last one gives logits.
pub(crate) type Part<'a> = (&'a Lane, Range<usize>);

/// Runs one step in which every part samples; their logits are then `executor.logits(part)`. Returns the greedy tokens.
pub(crate) fn step<O: Ops>(executor: &mut ModelExecutor<O>, parts: &[Part<'_>]) -> Vec<TokenId> {
    let mut plan = StepPlan::default();
    for (index, (lane, positions)) in parts.iter().enumerate() {
        let start = plan.tokens.len();
        plan.tokens.extend_from_slice(&lane.tokens[positions.clone()]);
        let (sequence, seat) = (SequenceId(index as u64), Seat(u32::try_from(index).unwrap()));
        plan.seats.push(SeatSetup {
            seat,
            sequence,
            sampling: SamplingParams::GREEDY,
            logit_bias: Arc::new([]),
            history: Vec::new(),
            prompt_tokens: 0,
        });
        plan.rows.push(PlanRow {
            sequence,
            seat,
            input: RowInput::Tokens(start..plan.tokens.len()),
            start_position: u32::try_from(positions.start).unwrap(),
            sample: Sample::Token,
        });
        let blocks = BlockTable::new(lane.pages[..positions.end.div_ceil(BLOCK_TOKENS)].to_vec());
        plan.block_tables.push(TableUpdate { seat, layer_group: 0, blocks });
    }
    let ticket = executor.submit(plan).unwrap();
    executor.collect(ticket).unwrap().tokens
}

/// Computes a lane up to `end` in chunks and returns the logits at its last position.
pub(crate) fn prefill<O: Ops>(
    executor: &mut ModelExecutor<O>,
    lane: &Lane,
    start: usize,
    end: usize,
    mut chunk: impl FnMut() -> usize,
) -> Vec<f32> {
    let mut computed = start;
    while computed < end {
        let next = (computed + chunk()).min(end);
        step(executor, &[(lane, computed..next)]);
        computed = next;
    }
    executor.logits(0).to_vec()
}
