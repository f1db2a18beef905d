//! What a step costs whom, to the microsecond: a simulated device and the step loop's clock share a time that moves only
//! as the device's cost model says, and by a stated time of the host before each submission.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tempfile::TempDir;
use weir_engine::executor::sim::{CostModel, SimConfig, SimExecutor};
use weir_engine::{
    Capacity, Executor, ExecutorError, SamplingParams, SequenceRequest, StepOutput, StepPlan, Ticket,
    TokenMask,
};
use weir_metering::{LogOptions, RecordLog};
use weir_schemas::clock::Clock;
use weir_schemas::ids::RequestId;
use weir_schemas::records::{ExecutionData, ExecutionRecord};
use weir_schemas::rpc::worker::Finished;
use weir_text::{ModelText, StopMatcher, TextModel};
use weir_worker::{LocalEngine, LocalRequest, LocalSession};

use crate::support::tenant;

const MODEL: &[u8] = include_bytes!("../../../text/tests/fixtures/smollm2.model_text.json");
const COST: CostModel = CostModel {
    step: Duration::from_micros(1_000),
    token: Duration::from_micros(10),
    context_token: Duration::ZERO,
};
/// Shorter than a step, so that the device always has the next one at hand.
const HOST: Duration = Duration::from_micros(300);

/// A time that moves when it is told to, in microseconds since `base`.
#[derive(Clone)]
struct Time {
    base: Instant,
    us: Arc<AtomicU64>,
}

impl Time {
    fn now(&self) -> Instant {
        self.base + Duration::from_micros(self.us.load(Ordering::Relaxed))
    }

    fn reach(&self, at: Instant) {
        let us = at.saturating_duration_since(self.base).as_micros();
        self.us.fetch_max(us.try_into().unwrap(), Ordering::Relaxed);
    }
}

struct VirtualDevice {
    sim: SimExecutor,
    time: Time,
    /// When each step in flight is over, oldest first.
    ready: VecDeque<Instant>,
    idle_at: Instant,
    /// What all steps took.
    busy_us: Arc<AtomicU64>,
}

impl Executor for VirtualDevice {
    fn capacity(&self) -> Capacity {
        self.sim.capacity()
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        self.time.reach(self.time.now() + HOST);
        let cost = COST.of(&plan);
        self.busy_us.fetch_add(cost.as_micros().try_into().unwrap(), Ordering::Relaxed);
        self.idle_at = self.idle_at.max(self.time.now()) + cost;
        self.ready.push_back(self.idle_at);
        self.sim.submit(plan)
    }

    fn supply_masks(&mut self, ticket: Ticket, masks: Vec<Option<TokenMask>>) -> Result<(), ExecutorError> {
        self.sim.supply_masks(ticket, masks)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        self.time.reach(self.ready.pop_front().unwrap());
        self.sim.collect(ticket)
    }

    fn host_page(&mut self, page: u32) -> &mut [u8] {
        self.sim.host_page(page)
    }
}

/// A step loop on such a device.
struct Bench {
    engine: LocalEngine,
    session: LocalSession,
    registry: Registry,
    log: Arc<RecordLog>,
    busy_us: Arc<AtomicU64>,
    _folder: TempDir,
}

impl Bench {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (log, _) = RecordLog::open(folder.path(), LogOptions::new("wrk_x")).unwrap();
        let text = Arc::new(TextModel::new(ModelText::from_bytes(MODEL).unwrap()).unwrap());
        let time = Time { base: Instant::now(), us: Arc::default() };
        let config = SimConfig {
            num_pages: 256,
            max_seats: 8,
            max_step_tokens: 128,
            context_limit: 512,
            vocab_size: text.vocab_size().try_into().unwrap(),
            cost: CostModel::default(),
        };
        let busy_us = Arc::new(AtomicU64::new(0));
        let device = VirtualDevice {
            sim: SimExecutor::new(config),
            time: time.clone(),
            ready: VecDeque::new(),
            idle_at: time.base,
            busy_us: busy_us.clone(),
        };
        let clock = Clock::new(|| chrono::DateTime::from_timestamp_millis(1_000_000).unwrap());
        let mut registry = Registry::default();
        let now = move || time.now();
        let engine = LocalEngine::start(device, text, log.clone(), now, clock, &mut registry).unwrap();
        let session = engine.open_session("gtw_x");
        Self { engine, session, registry, log, busy_us, _folder: folder }
    }

    async fn generate(&self, handle: u64, prompt_tokens: u32, max_tokens: u32) {
        let prompt = (0..prompt_tokens).map(|at| 1_000 * u32::try_from(handle).unwrap() + at).collect();
        let sampling = SamplingParams { seed: handle, ..SamplingParams::GREEDY };
        let sequence = SequenceRequest::new(prompt, max_tokens, sampling);
        let (id, stop) = (RequestId::from_u128(handle.into()), StopMatcher::new(&[]).unwrap());
        let request = LocalRequest { handle, id, tenant: tenant(1), sequence, stop, grammar: None };
        self.engine.generate(&self.session, request).await.unwrap();
    }

    /// What `count` requests were told at their ends, by handle.
    async fn finished(&mut self, count: usize) -> Vec<Finished> {
        let mut finished = Vec::new();
        while finished.len() < count {
            let message = self.session.messages.recv().await.unwrap();
            finished.extend(
                message
                    .updates()
                    .map(Result::unwrap)
                    .filter_map(|update| Some((update.handle, update.finished?.clone()))),
            );
        }
        finished.sort_by_key(|(handle, _)| *handle);
        finished.into_iter().map(|(_, finished)| finished).collect()
    }

    fn records(&self) -> Vec<ExecutionData> {
        self.log.sync().unwrap();
        let records = self.log.cursor().read(100, 1 << 20).unwrap();
        let parse = |payload: &[u8]| serde_json::from_slice::<ExecutionRecord>(payload).unwrap().data;
        records.iter().map(|record| parse(&record.payload)).collect()
    }

    fn metric(&self, name: &str) -> f64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("weir_worker_{name}{{"))).unwrap();
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }
}

#[tokio::test]
async fn a_step_takes_what_the_device_took_whatever_the_host_did_meanwhile() {
    let mut bench = Bench::start();
    bench.generate(1, 8, 4).await;
    let finished = bench.finished(1).await.remove(0);
    // The prompt's eight tokens give the first token, three steps of one token the others.
    let (prefill_us, decode_us) = (1_080, 3 * 1_010);
    assert_eq!((finished.prefill_us, finished.decode_us), (prefill_us, decode_us));
    let record = bench.records().remove(0);
    assert_eq!(record.device_us, prefill_us + decode_us);
    assert_eq!(bench.metric("step_seconds_count"), 4.0);
    let step_us = bench.metric("step_seconds_sum") * 1e6;
    assert_eq!(step_us.round(), (prefill_us + decode_us) as f64);
    // Two steps were submitted before any was collected, the other two after one each.
    assert_eq!(bench.metric("step_host_seconds_count"), 2.0);
    assert_eq!((bench.metric("step_host_seconds_sum") * 1e6).round(), 600.0);
}

#[tokio::test]
async fn the_time_of_all_steps_is_somebodys_and_nobodys_twice() {
    let mut bench = Bench::start();
    for handle in 1..=6 {
        bench.generate(handle, 30 * u32::try_from(handle).unwrap(), 20).await;
    }
    bench.finished(6).await;
    let records = bench.records();
    let attributed_us: u64 = records.iter().map(|record| record.device_us).sum();
    let busy_us = bench.busy_us.load(Ordering::Relaxed);
    // Each record counts whole microseconds.
    assert!((busy_us - 6..=busy_us).contains(&attributed_us), "{attributed_us} of {busy_us} us");
}
