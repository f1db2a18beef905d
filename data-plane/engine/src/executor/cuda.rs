//! Runs plans on a GPU.
//!
//! Everything lives on the device from load to drop: weights, pages, block tables, seats, logits. A step is one copy of
//! its plain data, a few launches or one graph, and one copy of its tokens back; the host waits in `collect` alone. Two
//! steps may be in flight, so that the device finds the next one submitted when one ends.

mod load;
mod measure;
mod model;
mod needs;
mod steps;
mod tables;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use weir_kernels::cuda::ops::{DevicePages, SeatParameters, SeatTables, StepInputs};
use weir_kernels::cuda::{CudaError, Device, Graph, PinnedBuffer};

pub use load::{CudaConfig, CudaLoadError};
pub use measure::random_weight_bytes;
pub use weir_kernels::cuda::ops::{ActivationType, KvElement};
pub use weir_kernels::cuda::{DeviceInfo, ProbeError, probe};

use super::{Capacity, Executor, ExecutorError, Ticket, check_rest, check_tables};
use crate::step::{BlockTables, Page, PageCopy, SeatSetup, StepOutput, StepPlan, TokenMask};
use model::{CudaModel, Extent};
use steps::{Layout, Outputs, Step};

/// Plans in flight: one runs, one waits behind it.
const IN_FLIGHT: u32 = 2;

/// Runs plans on one device.
#[derive(Debug)]
pub struct CudaExecutor {
    device: Device,
    model: CudaModel,
    capacity: Capacity,
    inputs: StepInputs,
    pages: DevicePages,
    seats: SeatTables,
    /// What the device's block tables hold.
    tables: BlockTables,
    /// How many alternatives each seat wants the log-probabilities of; `None` in one that was never set up.
    top_logprobs: Vec<Option<Option<u32>>>,
    /// Decode steps by batch size, smallest first.
    graphs: Vec<(usize, Graph)>,
    /// Host memory for the tokens of steps, of those not in flight.
    outputs: Vec<Outputs>,
    in_flight: VecDeque<Step>,
    host_pages: PinnedBuffer<u8>,
    next_ticket: u64,
    step_timeout: Duration,
}

impl CudaExecutor {
    fn run(
        &mut self,
        plan: &StepPlan,
        changes: &tables::Changes<'_>,
        mut outputs: Outputs,
    ) -> Result<Step, CudaError> {
        for setup in &plan.seats {
            self.set_seat(setup)?;
        }
        let within_pool = self.copy_through_host(&plan.copies)?;
        let layout = Layout::of(plan, &self.top_logprobs);
        self.pages.set_tables(&self.device, &changes.whole)?;
        self.inputs.submit(
            &self.device,
            &steps::rows(plan),
            &layout.samples,
            &changes.entries,
            &within_pool,
        )?;
        self.model.operations.copy_pages(&self.inputs, &mut self.pages)?;
        self.model.operations.set_block_tables(&self.inputs, &mut self.pages)?;
        if !plan.rows.is_empty() {
            self.forward(plan, layout.samples.len())?;
        }
        self.sample(0..layout.num_unmasked, &layout, &mut outputs)?;
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let lacks_masks = layout.num_unmasked < layout.samples.len();
        Ok(Step { ticket, layout, lacks_masks, ended: self.device.record()?, outputs })
    }

    /// Checks a plan whose tables are taken in; room for what it gives.
    fn check(&mut self, plan: &StepPlan) -> Result<Outputs, ExecutorError> {
        check_rest(plan, &self.capacity, &self.tables)?;
        let is_set_up = |seat: usize| {
            self.top_logprobs[seat].is_some() || plan.seats.iter().any(|setup| setup.seat.0 as usize == seat)
        };
        if !plan.rows.iter().all(|row| is_set_up(row.seat.0 as usize)) {
            return Err(ExecutorError::InvalidPlan("a seat that was never set up"));
        }
        if self.in_flight.back().is_some_and(|step| step.lacks_masks) {
            return Err(ExecutorError::InvalidPlan("the step before still lacks its masks"));
        }
        self.outputs.pop().ok_or(ExecutorError::InvalidPlan("more plans in flight than stated"))
    }

    fn set_seat(&mut self, setup: &SeatSetup) -> Result<(), CudaError> {
        let (seat, sampling) = (setup.seat.0 as usize, &setup.sampling);
        let parameters = SeatParameters {
            seed: sampling.seed,
            inverse_temperature: if sampling.is_greedy() { 0.0 } else { sampling.temperature.recip() },
            top_p: sampling.top_p,
            min_score: if sampling.min_p > 0.0 { sampling.min_p.ln() } else { f32::NEG_INFINITY },
            top_k: sampling.top_k,
            repetition_penalty: sampling.repetition_penalty,
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            count_slot: sampling.penalizes().then_some(seat),
            top_logprobs: sampling.logprobs.map(|top| top as usize),
        };
        let history = (setup.history.as_slice(), setup.prompt_tokens as usize);
        self.model.operations.set_seat(&mut self.seats, seat, &parameters, &setup.logit_bias, history)?;
        self.top_logprobs[seat] = Some(sampling.logprobs);
        Ok(())
    }

    /// Submits the copies from and to host memory, and returns those that stay within the pool, which come after them.
    fn copy_through_host(&mut self, copies: &[PageCopy]) -> Result<Vec<(u32, u32)>, CudaError> {
        let page_bytes = usize::try_from(self.capacity.page_bytes).expect("a page fits in memory");
        let mut within_pool = Vec::new();
        for copy in copies {
            match (copy.from, copy.to) {
                (Page::Pool(from), Page::Pool(to)) => within_pool.push((from, to)),
                (Page::Pool(from), Page::Host(to)) => {
                    let at = to as usize * page_bytes;
                    self.pages.page_to_host(&self.device, from as usize, &mut self.host_pages, at)?;
                }
                (Page::Host(from), Page::Pool(to)) => {
                    let at = from as usize * page_bytes;
                    self.pages.page_from_host(&self.device, &mut self.host_pages, at, to as usize)?;
                }
                (Page::Host(_), Page::Host(_)) => {}
            }
        }
        Ok(within_pool)
    }

    /// A step in which every row decodes is a graph of the next larger batch size, the rest of which is inactive.
    fn forward(&mut self, plan: &StepPlan, num_samples: usize) -> Result<(), CudaError> {
        let (rows, tokens) = (plan.rows.len(), plan.num_tokens());
        let is_decode = num_samples == rows && self.inputs.is_split();
        if is_decode && let Some((_, graph)) = self.graphs.iter_mut().find(|(size, _)| *size >= rows) {
            return graph.launch();
        }
        let extent = Extent { rows, tokens, samples: num_samples, is_decode };
        self.model.forward(&self.inputs, &mut self.pages, self.seats.last_token(), extent)
    }

    /// Submits the sampling of some of the step's samples, and the copy of what it gives.
    fn sample(
        &mut self,
        samples: Range<usize>,
        layout: &Layout,
        outputs: &mut Outputs,
    ) -> Result<(), CudaError> {
        if samples.is_empty() {
            return Ok(());
        }
        let Self { device, model, inputs, seats, .. } = self;
        let operations = &model.operations;
        operations.sample(model.logits(), inputs, samples.clone(), seats)?;
        device.download(seats.sampled(), samples.end, &mut outputs.tokens)?;
        if layout.wanted[samples.clone()].iter().any(Option::is_some) {
            operations.logprobs(model.logits(), inputs, samples.clone(), seats)?;
            outputs.take_logprobs(device, seats, samples.end)?;
        }
        Ok(())
    }

    fn sample_masked(&mut self, step: &mut Step, masks: &[Option<TokenMask>]) -> Result<(), CudaError> {
        let all = vec![u32::MAX; self.capacity.vocab_size.div_ceil(32) as usize];
        let masks: Vec<&[u32]> = masks.iter().map(|mask| mask.as_deref().unwrap_or(&all)).collect();
        self.seats.set_masks(&self.device, &masks)?;
        let samples = step.layout.num_unmasked..step.layout.samples.len();
        self.sample(samples, &step.layout, &mut step.outputs)?;
        step.ended = self.device.record()?;
        step.lacks_masks = false;
        Ok(())
    }
}

impl Executor for CudaExecutor {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        check_tables(&plan, &self.capacity)?;
        let mut changes = tables::Changes::new(self.inputs.max_entries());
        plan.block_tables.iter().for_each(|table| changes.note(table, &mut self.tables));
        // Of a plan that is refused the device is told nothing.
        let outputs = self.check(&plan).inspect_err(|_| self.tables.forget(&plan))?;
        let step = self.run(&plan, &changes, outputs).map_err(device_error)?;
        let ticket = step.ticket;
        self.in_flight.push_back(step);
        Ok(ticket)
    }

    fn supply_masks(&mut self, ticket: Ticket, masks: Vec<Option<TokenMask>>) -> Result<(), ExecutorError> {
        let waits = |step: &Step| {
            step.ticket == ticket
                && step.lacks_masks
                && step.layout.samples.len() - step.layout.num_unmasked == masks.len()
        };
        let unwanted = ExecutorError::InvalidPlan("masks that no plan in flight waits for");
        if !self.in_flight.back().is_some_and(waits) {
            return Err(unwanted);
        }
        let mut step = self.in_flight.pop_back().ok_or(unwanted)?;
        self.sample_masked(&mut step, &masks).map_err(device_error)?;
        self.in_flight.push_back(step);
        Ok(())
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        if self.in_flight.front().is_none_or(|step| step.ticket != ticket) {
            return Err(ExecutorError::UnknownTicket(ticket));
        }
        let mut step = self.in_flight.pop_front().ok_or(ExecutorError::UnknownTicket(ticket))?;
        if step.lacks_masks {
            self.outputs.push(step.outputs);
            return Err(ExecutorError::InvalidPlan("collected before its masks were supplied"));
        }
        let collected = step.ended.wait(self.step_timeout).and_then(|()| step.read());
        self.outputs.push(step.outputs);
        collected.map_err(|error| {
            // Leaked: to give the memory of steps back, the driver would wait for a device that may hang.
            std::mem::forget(std::mem::take(&mut self.in_flight));
            device_error(error)
        })
    }

    fn host_page(&mut self, page: u32) -> &mut [u8] {
        let page_bytes = usize::try_from(self.capacity.page_bytes).expect("a page fits in memory");
        let pages = self.host_pages.elements().expect("steps that copy host pages are collected first");
        &mut pages[page as usize * page_bytes..][..page_bytes]
    }
}

fn device_error(error: CudaError) -> ExecutorError {
    ExecutorError::Device(Box::new(error))
}
