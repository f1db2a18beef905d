//! Runs plans on nothing: the seam, the order and the timing of a device without a model.
//!
//! A token is a function of (seed, position) alone, and a step takes what a stated cost model says, one after another as
//! on a device's stream. For measuring everything around an engine, and for trying limits and fleets without weights;
//! what it answers is noise.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Capacity, Executor, ExecutorError, LayoutId, Ticket, check_plan};
use crate::sampling::noise::{GOLDEN_GAMMA, mix};
use crate::sequence::TokenId;
use crate::step::{BlockTables, PlanRow, Sample, StepOutput, StepPlan, TokenLogprobs, TokenMask};

/// Positions of a page, as on real devices.
const BLOCK_TOKENS: u32 = 16;

/// The dials of a simulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// KV pages; they hold nothing, but are given out as real ones.
    pub num_pages: u32,
    /// Most sequences in a step.
    pub max_seats: u32,
    /// Most new tokens in a step.
    pub max_step_tokens: u32,
    /// Most positions of a sequence.
    pub context_limit: u32,
    /// Token ids are `0..vocab_size`.
    pub vocab_size: u32,
    /// How long steps take.
    pub cost: CostModel,
}

/// What a step takes: the sum of these. All zero, by default: it is over at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostModel {
    /// Whatever is in it: reading the weights.
    pub step: Duration,
    /// For each new token: arithmetic.
    pub token: Duration,
    /// For each position that a row attends over at its end: reading keys and values.
    pub context_token: Duration,
}

impl CostModel {
    /// The time of one step.
    pub fn of(&self, plan: &StepPlan) -> Duration {
        let new_tokens = u32::try_from(plan.num_tokens()).unwrap_or(u32::MAX);
        let context: u64 = plan.rows.iter().map(|row| u64::from(row.end_position())).sum();
        let context = u32::try_from(context).unwrap_or(u32::MAX);
        self.step + self.token * new_tokens + self.context_token * context
    }
}

/// The token that a seed gives at a position, of those that a mask allows; `None` if it allows none.
pub fn token_at(seed: u64, position: u32, vocab_size: u32, mask: Option<&TokenMask>) -> Option<TokenId> {
    let hash = mix(seed.wrapping_add(u64::from(position).wrapping_mul(GOLDEN_GAMMA)));
    let Some(mask) = mask else {
        // The upper bits of the product: as even as a remainder, and much quicker.
        return TokenId::try_from((u128::from(hash) * u128::from(vocab_size)) >> 64).ok();
    };
    let is_allowed =
        |token: &TokenId| mask.get((token / 32) as usize).is_some_and(|word| word >> (token % 32) & 1 == 1);
    let num_allowed = (0..vocab_size).filter(is_allowed).count();
    let choice = usize::try_from(hash).unwrap_or(usize::MAX).checked_rem(num_allowed)?;
    (0..vocab_size).filter(is_allowed).nth(choice)
}

/// Simulates a device.
#[derive(Debug)]
pub struct SimExecutor {
    config: SimConfig,
    seats: Vec<SimSeat>,
    tables: BlockTables,
    in_flight: VecDeque<Step>,
    next_ticket: u64,
    /// When the device has run all that was submitted.
    idle_at: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct SimSeat {
    seed: u64,
    logprobs: bool,
}

#[derive(Debug)]
struct Step {
    ticket: Ticket,
    rows: Vec<SampledRow>,
    masks: Option<Vec<Option<TokenMask>>>,
    ready_at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct SampledRow {
    seat: SimSeat,
    position: u32,
    is_masked: bool,
}

impl SimExecutor {
    /// A device that is idle.
    pub fn new(config: SimConfig) -> Self {
        let seats = vec![SimSeat::default(); config.max_seats as usize];
        let tables = BlockTables::new(config.max_seats, 1);
        Self { config, seats, tables, in_flight: VecDeque::new(), next_ticket: 0, idle_at: Instant::now() }
    }

    fn sampled_row(&self, row: &PlanRow) -> SampledRow {
        SampledRow {
            seat: self.seats[row.seat.0 as usize],
            position: row.sample_position(),
            is_masked: row.sample == Sample::Masked,
        }
    }
}

impl Executor for SimExecutor {
    fn capacity(&self) -> Capacity {
        let SimConfig { num_pages, max_seats, max_step_tokens, context_limit, vocab_size, .. } = self.config;
        Capacity {
            num_pages,
            page_bytes: 0,
            layout: LayoutId::of("sim"),
            num_layer_groups: 1,
            num_host_pages: 0,
            block_tokens: BLOCK_TOKENS,
            max_seats,
            max_step_tokens,
            max_in_flight: 2,
            context_limit,
            vocab_size,
        }
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        check_plan(&plan, &self.capacity(), &mut self.tables)?;
        for setup in &plan.seats {
            let logprobs = setup.sampling.logprobs.is_some();
            self.seats[setup.seat.0 as usize] = SimSeat { seed: setup.sampling.seed, logprobs };
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        if !self.config.cost.is_zero() {
            self.idle_at = self.idle_at.max(Instant::now()) + self.config.cost.of(&plan);
        }
        let rows = plan.rows.iter().filter(|row| row.samples()).map(|row| self.sampled_row(row)).collect();
        let masks = if plan.num_masked() == 0 { Some(Vec::new()) } else { None };
        self.in_flight.push_back(Step { ticket, rows, masks, ready_at: self.idle_at });
        Ok(ticket)
    }

    fn supply_masks(&mut self, ticket: Ticket, masks: Vec<Option<TokenMask>>) -> Result<(), ExecutorError> {
        let waits = |step: &&mut Step| {
            let num_masked = step.rows.iter().filter(|row| row.is_masked).count();
            step.ticket == ticket && step.masks.is_none() && num_masked == masks.len()
        };
        let step = self.in_flight.back_mut().filter(waits);
        step.ok_or(ExecutorError::InvalidPlan("masks that no plan in flight waits for"))?.masks = Some(masks);
        Ok(())
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        if self.in_flight.front().is_none_or(|step| step.ticket != ticket) {
            return Err(ExecutorError::UnknownTicket(ticket));
        }
        let step = self.in_flight.pop_front().ok_or(ExecutorError::UnknownTicket(ticket))?;
        let masks =
            step.masks.ok_or(ExecutorError::InvalidPlan("collected before its masks were supplied"))?;
        if !self.config.cost.is_zero() {
            std::thread::sleep(step.ready_at.saturating_duration_since(Instant::now()));
        }
        let mut masks = masks.into_iter();
        let mut output = StepOutput::default();
        output.num_tokens.reserve_exact(step.rows.len());
        output.tokens.reserve_exact(step.rows.len());
        for row in step.rows {
            let mask = if row.is_masked { masks.next().flatten() } else { None };
            let token = token_at(row.seat.seed, row.position, self.config.vocab_size, mask.as_ref());
            output.num_tokens.push(u32::from(token.is_some()));
            output.tokens.extend(token);
            if let Some(token) = token.filter(|_| row.seat.logprobs) {
                // It could have been no other.
                output.logprobs.push(TokenLogprobs { chosen: 0.0, top: vec![(token, 0.0)] });
            }
        }
        Ok(output)
    }

    fn host_page(&mut self, _page: u32) -> &mut [u8] {
        &mut []
    }
}

impl CostModel {
    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}
