//! The host's share of a step: `cargo run --release -p weir-worker --example step_loop_bench`, or `make bench-step-loop`.
//!
//! The worker's step loop (stop matcher, text, sessions, execution records) on a simulated device whose steps take no
//! time, with 256 running sequences and requests that come, grow, stop, end and are cancelled all the time. Prints the
//! time from one submission to the next over five rounds of 10,000 steps, each and together, and fails if the 99th
//! percentile of all is not below 100 µs, or if they were not the steps that they are to be: full, with all that goes on.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::allow_attributes)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use prometheus_client::registry::Registry;
use weir_engine::executor::sim::{CostModel, SimConfig, SimExecutor};
use weir_engine::{
    Capacity, Class, Executor, ExecutorError, SamplingParams, SequenceRequest, StepOutput, StepPlan,
    TenantIndex, Ticket, TokenMask,
};
use weir_metering::{LogOptions, RecordLog};
use weir_schemas::clock::Clock;
use weir_schemas::ids::{RequestId, TenantId};
use weir_schemas::rpc::worker::FinishReason;
use weir_text::{ModelText, StopMatcher, TextModel};
use weir_worker::{LocalEngine, LocalRequest, LocalSession};

const MODEL: &[u8] = include_bytes!("../../text/tests/fixtures/smollm2.model_text.json");
/// The one that the worker's binary has.
#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LIMIT: Duration = Duration::from_micros(100);
/// Of a round.
const STEPS: usize = 10_000;
const ROUNDS: usize = 5;
/// A step that is much emptier says nothing of a full one.
const ROWS_MIN: f64 = 240.0;
const ENDED_MIN: u64 = 1000;
/// Enough for the first sequences to end and for the pool to be full of cached prefixes.
const WARM_UP_STEPS: usize = 2_000;
const SEATS: u32 = 256;
/// Requests under way in all: so many wait that a seat is taken again at once.
const LIVE: u64 = 320;
/// The commonest tokens, of which most of a real text is made.
const VOCAB_SIZE: u32 = 8192;
const GATEWAYS: u64 = 4;
const TENANTS: u64 = 8;

fn main() -> ExitCode {
    let text = Arc::new(TextModel::new(ModelText::from_bytes(MODEL).unwrap()).unwrap());
    let config = SimConfig {
        num_pages: 8192,
        max_seats: SEATS,
        max_step_tokens: 512,
        context_limit: 2048,
        vocab_size: VOCAB_SIZE,
        cost: CostModel::default(),
    };
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = RecordLog::open(dir.path(), LogOptions::new("wrk_bench")).unwrap();
    let enough = Arc::new(AtomicBool::new(false));
    let (stopwatch, laps) = Stopwatch::new(SimExecutor::new(config), enough.clone());
    let clock = Clock::new(|| chrono::DateTime::from_timestamp(1_790_000_000, 0).unwrap());
    let registry = &mut Registry::default();
    let engine =
        LocalEngine::start(stopwatch, text.clone(), log.clone(), Instant::now, clock, registry).unwrap();
    let clients = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let gateways = (0..GATEWAYS).map(|number| Gateway::new(&engine, &text, number).serve(&enough));
    let ended = clients.block_on(futures::future::join_all(gateways));
    drop(engine);
    let total = ended.into_iter().fold(Ended::default(), |total, part| total.and(part));
    report(laps.recv().unwrap(), total)
}

fn report(laps: Laps, ended: Ended) -> ExitCode {
    let Laps { mut times, rows } = laps;
    let rows = rows as f64 / times.len() as f64;
    println!(
        "step loop, {ROUNDS} rounds of {STEPS} steps, of {rows:.1} rows on average; ended since the start: {ended:?}"
    );
    println!("host time between two submissions, us:");
    for (number, times) in times.chunks_exact_mut(STEPS).enumerate() {
        percentiles(&format!("round {}", number + 1), times);
    }
    let p99 = percentiles("all", &mut times);
    let Ended { stop, length, cancelled, .. } = ended;
    let is_full = rows >= ROWS_MIN && [stop, length, cancelled].into_iter().all(|number| number >= ENDED_MIN);
    if !is_full {
        println!("FAILED: fewer than {ROWS_MIN} rows a step, or {ENDED_MIN} of each kind of end");
    }
    if p99 >= LIMIT {
        println!("MISSED: the 99th percentile of all is to be below {LIMIT:?}");
    }
    if is_full && p99 < LIMIT { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints them, and tells the 99th.
fn percentiles(of: &str, times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    let at = |permille: usize| times[(times.len() - 1) * permille / 1000];
    let [p50, p90, p99, max] = [500, 900, 990, 1000].map(|permille| at(permille).as_secs_f64() * 1e6);
    println!("  {of}: p50 {p50:.1}, p90 {p90:.1}, p99 {p99:.1}, max {max:.1}");
    at(990)
}

/// What the gateways saw end.
#[derive(Debug, Default)]
struct Ended {
    tokens: u64,
    stop: u64,
    length: u64,
    cancelled: u64,
}

impl Ended {
    fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            stop: self.stop + other.stop,
            length: self.length + other.length,
            cancelled: self.cancelled + other.cancelled,
        }
    }
}

/// One gateway: keeps its share of the requests under way and reads what comes back.
struct Gateway<'a> {
    engine: &'a LocalEngine,
    session: LocalSession,
    text: &'a TextModel,
    number: u64,
    next_handle: u64,
    live: u64,
    random: u64,
}

impl<'a> Gateway<'a> {
    fn new(engine: &'a LocalEngine, text: &'a TextModel, number: u64) -> Self {
        let session = engine.open_session(&format!("gtw_{number}"));
        Self { engine, session, text, number, next_handle: 1, live: 0, random: number + 1 }
    }

    async fn serve(mut self, enough: &AtomicBool) -> Ended {
        let mut ended = Ended::default();
        while !enough.load(Ordering::Relaxed) {
            while self.live < LIVE / GATEWAYS {
                let request = self.request();
                self.engine.generate(&self.session, request).await.unwrap();
                self.live += 1;
            }
            let message = self.session.messages.recv().await.expect("the gateways keep up");
            for update in message.updates().map(Result::unwrap) {
                ended.tokens += update.tokens.len() as u64;
                let Some(finished) = update.finished else { continue };
                self.live -= 1;
                match finished.reason() {
                    FinishReason::Stop => ended.stop += 1,
                    FinishReason::Length => ended.length += 1,
                    FinishReason::Cancelled => ended.cancelled += 1,
                    other => panic!("{other:?}: {}", finished.message),
                }
                // One more goes for every eight that ended: any of the latest, if it still runs.
                if self.random(8) == 0 {
                    let handle = self.next_handle.saturating_sub(1 + self.random(64));
                    self.session.cancel(handle);
                }
            }
        }
        ended
    }

    fn request(&mut self) -> LocalRequest {
        let handle = self.next_handle;
        self.next_handle += 1;
        let tenant = self.random(TENANTS);
        // Half of a tenant's prompts begin alike.
        let shared = 32 * self.random(2);
        let own = 16 + self.random(96);
        let first = handle * GATEWAYS + self.number;
        let prompt = (0..shared + own).map(|at| if at < shared { tenant + at } else { first * 31 + at });
        let stop =
            if self.random(4) == 0 { vec!["qu".to_owned(), "\n\nUser:".to_owned()] } else { Vec::new() };
        let prompt = prompt.map(|token| u32::try_from(token % u64::from(VOCAB_SIZE)).unwrap()).collect();
        let max_tokens = u32::try_from(64 + self.random(896)).unwrap();
        let sampling = SamplingParams { seed: first, ..SamplingParams::GREEDY };
        let sequence = SequenceRequest {
            stop_tokens: self.text.eos_ids().to_vec(),
            cache_salt: [u8::try_from(tenant).unwrap(); 32],
            tenant: TenantIndex(tenant),
            class: if self.random(8) == 0 { Class::Batch } else { Class::Interactive },
            ..SequenceRequest::new(prompt, max_tokens, sampling)
        };
        LocalRequest {
            handle,
            id: RequestId::from_u128(first.into()),
            tenant: TenantId::from_u128(tenant.into()),
            sequence,
            stop: StopMatcher::new(&stop).unwrap(),
            grammar: None,
        }
    }

    /// Below `bound` (xorshift64*).
    fn random(&mut self, bound: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % bound
    }
}

/// The times from one submission to the next, and all rows of those steps.
#[derive(Default)]
struct Laps {
    times: Vec<Duration>,
    rows: usize,
}

/// Notes when each submission is in.
struct Stopwatch {
    device: SimExecutor,
    steps: usize,
    last: Instant,
    laps: Laps,
    enough: Arc<AtomicBool>,
    done: Sender<Laps>,
}

impl Stopwatch {
    fn new(device: SimExecutor, enough: Arc<AtomicBool>) -> (Self, Receiver<Laps>) {
        let (done, receiver) = channel();
        let laps = Laps { times: Vec::with_capacity(ROUNDS * STEPS), rows: 0 };
        (Self { device, steps: 0, last: Instant::now(), laps, enough, done }, receiver)
    }

    fn lap(&mut self, rows: usize) {
        let now = Instant::now();
        let last = std::mem::replace(&mut self.last, now);
        self.steps += 1;
        if self.steps > WARM_UP_STEPS && self.laps.times.len() < ROUNDS * STEPS {
            self.laps.times.push(now - last);
            self.laps.rows += rows;
        } else if self.steps == WARM_UP_STEPS + ROUNDS * STEPS + 1 {
            self.done.send(std::mem::take(&mut self.laps)).unwrap();
            self.enough.store(true, Ordering::Relaxed);
        }
    }
}

impl Executor for Stopwatch {
    fn capacity(&self) -> Capacity {
        self.device.capacity()
    }

    fn submit(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError> {
        let rows = plan.rows.len();
        let ticket = self.device.submit(plan);
        self.lap(rows);
        ticket
    }

    fn supply_masks(&mut self, ticket: Ticket, masks: Vec<Option<TokenMask>>) -> Result<(), ExecutorError> {
        self.device.supply_masks(ticket, masks)
    }

    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError> {
        self.device.collect(ticket)
    }

    fn host_page(&mut self, page: u32) -> &mut [u8] {
        self.device.host_page(page)
    }
}
