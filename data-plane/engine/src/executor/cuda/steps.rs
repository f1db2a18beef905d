//! Steps as the device is told of them, and as they come back.

use weir_kernels::cuda::ops::{SeatTables, StepRow, StepSample, TOP_LOGPROBS_MAX};
use weir_kernels::cuda::{CudaError, Device, Event, PinnedBuffer};

use crate::executor::Ticket;
use crate::step::{RowInput, Sample, StepOutput, StepPlan, TokenLogprobs};

/// A step in flight.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) ticket: Ticket,
    pub(super) layout: Layout,
    pub(super) lacks_masks: bool,
    /// Passes when its tokens are in `outputs`.
    pub(super) ended: Event,
    pub(super) outputs: Outputs,
}

/// In which order a step's rows are sampled: those that wait for no mask first.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) samples: Vec<StepSample>,
    pub(super) num_unmasked: usize,
    /// By sample: how many alternatives' log-probabilities are wanted, if any are.
    pub(super) wanted: Vec<Option<u32>>,
    /// By sampling row, in the plan's order: its place among the samples.
    places: Vec<usize>,
}

/// Host memory that a step's tokens are copied to.
#[derive(Debug)]
pub(super) struct Outputs {
    /// `[rows]`; negative where none could be chosen.
    pub(super) tokens: PinnedBuffer<i32>,
    /// `[rows, 21]`: of the chosen token, then of the alternatives.
    logprobs: PinnedBuffer<f32>,
    /// `[rows, 20]`.
    top_tokens: PinnedBuffer<i32>,
}

impl Outputs {
    pub(super) fn new(device: &Device, num_rows: usize) -> Result<Self, CudaError> {
        Ok(Self {
            tokens: device.pinned(num_rows)?,
            logprobs: device.pinned(num_rows * (TOP_LOGPROBS_MAX + 1))?,
            top_tokens: device.pinned(num_rows * TOP_LOGPROBS_MAX)?,
        })
    }

    pub(super) fn take_logprobs(
        &mut self,
        device: &Device,
        seats: &SeatTables,
        num_samples: usize,
    ) -> Result<(), CudaError> {
        let (logprobs, top_tokens) = seats.logprobs();
        device.download(logprobs, num_samples * (TOP_LOGPROBS_MAX + 1), &mut self.logprobs)?;
        device.download(top_tokens, num_samples * TOP_LOGPROBS_MAX, &mut self.top_tokens)
    }
}

impl Layout {
    pub(super) fn of(plan: &StepPlan, top_logprobs: &[Option<Option<u32>>]) -> Self {
        let rows: Vec<_> = plan.rows.iter().enumerate().filter(|(_, row)| row.samples()).collect();
        let is_masked = |place: &usize| rows[*place].1.sample == Sample::Masked;
        let (masked, mut order): (Vec<usize>, Vec<usize>) = (0..rows.len()).partition(is_masked);
        let num_unmasked = order.len();
        order.extend(masked);
        let sample = |(position, place): (usize, &usize)| StepSample {
            row: rows[*place].0,
            mask: position.checked_sub(num_unmasked),
        };
        let mut places = vec![0; order.len()];
        for (position, &place) in order.iter().enumerate() {
            places[place] = position;
        }
        Self {
            samples: order.iter().enumerate().map(sample).collect(),
            num_unmasked,
            wanted: order
                .iter()
                .map(|place| top_logprobs[rows[*place].1.seat.0 as usize].flatten())
                .collect(),
            places,
        }
    }
}

impl Step {
    /// What has come back, in the plan's order.
    pub(super) fn read(&mut self) -> Result<StepOutput, CudaError> {
        let Self { layout, outputs, .. } = self;
        let mut output = StepOutput::default();
        let tokens = outputs.tokens.elements()?;
        let any_logprobs = layout.wanted.iter().any(Option::is_some);
        let empty: (&[f32], &[i32]) = (&[], &[]);
        let (logprobs, top_tokens) = if any_logprobs {
            (&*outputs.logprobs.elements()?, &*outputs.top_tokens.elements()?)
        } else {
            empty
        };
        for &place in &layout.places {
            let token = u32::try_from(tokens[place]).ok();
            output.num_tokens.push(u32::from(token.is_some()));
            output.tokens.extend(token);
            let Some(top) = layout.wanted[place].filter(|_| token.is_some()) else { continue };
            let of_sample = &logprobs[place * (TOP_LOGPROBS_MAX + 1)..][..=top as usize];
            let tokens =
                top_tokens[place * TOP_LOGPROBS_MAX..].iter().map(|token| u32::try_from(*token).unwrap_or(0));
            output.logprobs.push(TokenLogprobs {
                chosen: of_sample[0],
                top: tokens.zip(of_sample[1..].iter().copied()).collect(),
            });
        }
        Ok(output)
    }
}

/// The plan's rows.
pub(super) fn rows(plan: &StepPlan) -> Vec<StepRow<'_>> {
    let row = |row: &'_ crate::step::PlanRow| StepRow {
        seat: row.seat.0 as usize,
        start_position: row.start_position as usize,
        tokens: match &row.input {
            RowInput::Tokens(range) => Some(&plan.tokens[range.clone()]),
            RowInput::LastSampled => None,
        },
    };
    plan.rows.iter().map(row).collect()
}
