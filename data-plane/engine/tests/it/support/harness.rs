//! An engine on a paper executor, checked after every step against what each sequence must get.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use weir_engine::{
    AddError, Advance, Commit, Engine, EngineConfig, EngineError, Executor, ExecutorError, FinishReason,
    SamplingParams, SequenceEvent, SequenceId, SequenceRequest, SequenceUsage, Sink, StepReport, TokenId,
    TokenMask, Verdict,
};

use super::paper_executor::{PaperExecutor, SeenRow, Shared, VOCAB, allowed_from, token_after};

/// A request of tenant 0, interactive, greedy, whose prompt is unlike any other seed's.
pub fn request(seed: u64, prompt_len: usize, max_tokens: u32) -> SequenceRequest {
    let sampling = SamplingParams { seed, ..SamplingParams::GREEDY };
    SequenceRequest::new(prompt(seed, prompt_len), max_tokens, sampling)
}

/// Tokens of a prompt; equal seeds share their prefix.
pub fn prompt(seed: u64, len: usize) -> Vec<TokenId> {
    (0..len as u32).map(|position| token_after([position], seed)).collect()
}

/// Stops a sequence at tokens that are multiples of a number, as a stop matcher would.
///
/// As a grammar it allows, after a token, those of the same remainder by three.
pub struct StopAtMultiples {
    multiple: u32,
    last: TokenId,
}

impl Commit for StopAtMultiples {
    fn commit(&mut self, token: TokenId) -> Verdict {
        self.last = token;
        let stops = self.multiple > 0 && token.is_multiple_of(self.multiple);
        if stops { Verdict::Stop } else { Verdict::Continue }
    }

    fn mask(&mut self) -> Option<TokenMask> {
        Some(same_remainder(self.last))
    }
}

fn same_remainder(last: TokenId) -> TokenMask {
    let mut mask = vec![0_u32; VOCAB.div_ceil(32) as usize];
    for token in (0..VOCAB).filter(|token| token % 3 == last % 3) {
        mask[token as usize / 32] |= 1 << (token % 32);
    }
    mask.into()
}

/// All that the engine says.
#[derive(Debug, Default)]
struct Heard {
    events: Vec<SequenceEvent>,
    computed: Vec<(SequenceId, u32)>,
    announced: u32,
}

impl<C> Sink<C> for Heard {
    fn collected(&mut self, num_tokens: u32) {
        self.announced += num_tokens;
    }

    fn advanced(&mut self, id: SequenceId, kept: &mut C, advance: Advance<'_>) {
        self.computed.push((id, advance.computed));
        self.events.advanced(id, kept, advance);
    }

    fn finished(&mut self, id: SequenceId, kept: C, reason: FinishReason, usage: SequenceUsage) {
        self.events.finished(id, kept, reason, usage);
    }
}

/// What became of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub tokens: Vec<TokenId>,
    pub end: Option<(FinishReason, SequenceUsage)>,
}

struct Expectation {
    tokens: Vec<TokenId>,
    reason: FinishReason,
    prompt_tokens: u32,
    cancelled: bool,
    may_fail: bool,
}

pub struct Harness {
    pub engine: Engine<PaperExecutor, StopAtMultiples>,
    pub config: EngineConfig,
    shared: Arc<Mutex<Shared>>,
    expected: BTreeMap<SequenceId, Expectation>,
    pub outcomes: BTreeMap<SequenceId, Outcome>,
    last_plan: Vec<SeenRow>,
    heard: Heard,
    /// Ids by the order in which they finished.
    pub finished: Vec<SequenceId>,
}

impl Harness {
    pub fn new(num_pages: u32, seats: u32) -> Self {
        Self::with_config(num_pages, seats, |_| {})
    }

    pub fn with_config(num_pages: u32, seats: u32, change: impl FnOnce(&mut EngineConfig)) -> Self {
        Self::pipelined(num_pages, seats, 1, change)
    }

    /// On an executor that takes `max_in_flight` plans.
    pub fn pipelined(
        num_pages: u32,
        seats: u32,
        max_in_flight: u32,
        change: impl FnOnce(&mut EngineConfig),
    ) -> Self {
        let (executor, shared) = PaperExecutor::new(num_pages, seats, seats + 192, max_in_flight);
        let mut config = EngineConfig::for_capacity(&executor.capacity());
        change(&mut config);
        let engine = Engine::new(config, executor).unwrap();
        let (expected, outcomes) = (BTreeMap::new(), BTreeMap::new());
        let (last_plan, heard, finished) = (Vec::new(), Heard::default(), Vec::new());
        Self { engine, config, shared, expected, outcomes, last_plan, heard, finished }
    }

    pub fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    pub fn add(&mut self, request: SequenceRequest) -> SequenceId {
        self.try_add(request, 0).unwrap()
    }

    /// `stop_multiple`: the injected commit stops at tokens divisible by it; 0 never stops.
    pub fn try_add(&mut self, request: SequenceRequest, stop_multiple: u32) -> Result<SequenceId, AddError> {
        let expectation = expect(&request, stop_multiple);
        let last = *request.prompt.last().unwrap_or(&0);
        let id = self.engine.add(request, StopAtMultiples { multiple: stop_multiple, last })?;
        self.expected.insert(id, expectation);
        self.outcomes.insert(id, Outcome { tokens: Vec::new(), end: None });
        Ok(id)
    }

    pub fn cancel(&mut self, id: SequenceId) {
        if let Some(expectation) = self.expected.get_mut(&id) {
            expectation.cancelled = true;
        }
        self.engine.cancel(id, &mut self.heard);
        self.take_in(StepReport::default());
    }

    /// Submits one step.
    pub fn submit(&mut self) -> Result<bool, EngineError> {
        let result = self.engine.submit_step(&mut self.heard);
        self.take_in(StepReport::default());
        result
    }

    /// From now on any unfinished sequence may end with an error.
    pub fn allow_errors(&mut self) {
        for (id, expectation) in &mut self.expected {
            expectation.may_fail |= self.outcomes[id].end.is_none();
        }
    }

    pub fn step(&mut self) -> StepReport {
        let report = self.engine.step(&mut self.heard).unwrap();
        self.take_in(report);
        report
    }

    /// Submits what the executor takes, lets the caller act while it is in flight, and collects a step.
    pub fn step_with(&mut self, act: impl FnOnce(&mut Self)) -> Result<StepReport, EngineError> {
        let result = self.submit_and_collect(act);
        if let Err(EngineError::Executor(ExecutorError::Device(_)) | EngineError::OutputMismatch { .. }) =
            result
        {
            // All that were in flight are void.
            self.shared().plans.clear();
        }
        self.take_in(StepReport::default());
        result
    }

    fn submit_and_collect(&mut self, act: impl FnOnce(&mut Self)) -> Result<StepReport, EngineError> {
        loop {
            match self.submit() {
                Ok(true) => {}
                Ok(false) | Err(EngineError::OutOfTurn) => break,
                Err(error) => return Err(error),
            }
        }
        self.engine.check_integrity().unwrap();
        act(self);
        self.engine.check_integrity().unwrap();
        let report = self.engine.collect_step(&mut self.heard)?;
        self.take_in(report);
        Ok(report)
    }

    /// Ends everything, as after a fatal error.
    pub fn fail_all(&mut self) {
        self.engine.fail_all(&mut self.heard);
        self.take_in(StepReport::default());
    }

    /// Steps until nothing is left; fails if that takes more than `steps_max`.
    pub fn run(&mut self, steps_max: usize) {
        for _ in 0..steps_max {
            if !self.engine.has_work() {
                return;
            }
            self.step();
        }
        assert!(!self.engine.has_work(), "starved: {:?}", self.unfinished());
    }

    pub fn unfinished(&self) -> Vec<SequenceId> {
        let open = self.outcomes.iter().filter(|(_, outcome)| outcome.end.is_none());
        open.map(|(&id, _)| id).collect()
    }

    pub fn usage(&self, id: SequenceId) -> SequenceUsage {
        self.outcomes[&id].end.unwrap().1
    }

    pub fn reason(&self, id: SequenceId) -> FinishReason {
        self.outcomes[&id].end.unwrap().0
    }

    /// Rows of the plan collected last.
    pub fn last_plan(&self) -> Vec<SeenRow> {
        self.last_plan.clone()
    }

    pub fn assert_all_free(&self) {
        let load = self.engine.load();
        assert_eq!(load.referenced_blocks, 0);
        assert_eq!(load.free_blocks + load.cached_blocks, self.engine.capacity().num_pages);
        assert_eq!((load.running, load.waiting_interactive, load.waiting_batch), (0, 0, 0));
        assert_eq!(load.queued_prefill_tokens, 0);
    }

    fn take_in(&mut self, report: StepReport) {
        self.engine.check_integrity().unwrap();
        let Heard { events, computed, announced } = std::mem::take(&mut self.heard);
        assert_eq!(computed.iter().map(|(_, tokens)| tokens).sum::<u32>(), announced);
        if report.num_rows > 0 {
            let rows = self.shared().plans.remove(0);
            self.check_budget(report, &computed, &rows);
            self.last_plan = rows;
        }
        for event in &events {
            match event {
                SequenceEvent::Token { id, token, .. } => {
                    let outcome = self.outcomes.get_mut(id).unwrap();
                    assert_eq!(outcome.end, None, "nothing follows the end");
                    outcome.tokens.push(*token);
                    let expectation = &self.expected[id];
                    let index = outcome.tokens.len() - 1;
                    assert_eq!(expectation.tokens.get(index), Some(token), "{id:?} at {index}");
                }
                SequenceEvent::Finished { id, reason, usage } => {
                    let outcome = self.outcomes.get_mut(id).unwrap();
                    assert_eq!(outcome.end.replace((*reason, *usage)), None, "one end each");
                    self.finished.push(*id);
                    self.check_end(*id, *reason, *usage);
                }
            }
        }
    }

    fn check_budget(&self, report: StepReport, reported: &[(SequenceId, u32)], rows: &[SeenRow]) {
        assert!(rows.len() <= self.config.seats as usize);
        let distinct: HashSet<u64> = rows.iter().map(|row| row.sequence).collect();
        assert_eq!(distinct.len(), rows.len(), "each sequence at most once");
        let computed: Vec<(SequenceId, u32)> =
            rows.iter().map(|row| (SequenceId(row.sequence), row.end - row.start)).collect();
        assert_eq!(computed.len(), report.num_rows as usize);
        // What is missing was discarded: its sequence is over.
        let mut reported = reported.iter().peekable();
        for row in &computed {
            if reported.next_if_eq(&row).is_none() {
                assert!(self.outcomes[&row.0].end.is_some(), "{row:?} is missing");
            }
        }
        assert_eq!(reported.next(), None);
        let total: u32 = rows.iter().map(|row| row.end - row.start).sum();
        assert!(total <= self.config.step_tokens_max);
        let chunk = self.config.chunk_tokens;
        for row in rows {
            assert!(row.samples || row.end.is_multiple_of(chunk), "a chunk ends at an absolute multiple");
        }
    }

    fn check_end(&self, id: SequenceId, reason: FinishReason, usage: SequenceUsage) {
        let expectation = &self.expected[&id];
        let num_tokens = self.outcomes[&id].tokens.len();
        assert_eq!(usage.prompt_tokens, expectation.prompt_tokens);
        assert_eq!(usage.generated_tokens as usize, num_tokens);
        let progress = usage.cached_prompt_tokens + usage.computed_prompt_tokens;
        assert!(progress <= usage.prompt_tokens);
        if num_tokens > 0 {
            assert_eq!(progress, usage.prompt_tokens, "a first token needs the whole prompt");
        }
        match reason {
            FinishReason::Cancelled => assert!(expectation.cancelled),
            FinishReason::Error => assert!(expectation.may_fail),
            FinishReason::Stop | FinishReason::Length => {
                assert_eq!((reason, num_tokens), (expectation.reason, expectation.tokens.len()));
            }
        }
    }
}

/// What a request must get: no pages, no batch, no cache.
fn expect(request: &SequenceRequest, stop_multiple: u32) -> Expectation {
    let mut context = request.prompt.clone();
    let mut reason = FinishReason::Length;
    for _ in 0..request.max_tokens.min(5000) {
        let mut token = token_after(context.iter().copied(), request.sampling.seed);
        if request.is_constrained {
            let last = *context.last().unwrap();
            token = allowed_from(token, Some(&same_remainder(last)));
        }
        context.push(token);
        if request.stop_tokens.contains(&token) || (stop_multiple > 0 && token.is_multiple_of(stop_multiple))
        {
            reason = FinishReason::Stop;
            break;
        }
    }
    Expectation {
        tokens: context.split_off(request.prompt.len()),
        reason,
        prompt_tokens: request.prompt.len() as u32,
        cancelled: false,
        may_fail: false,
    }
}
