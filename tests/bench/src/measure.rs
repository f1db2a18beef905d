//! The measurements in their order: at each number of streams the gateway and, with an answer of its own, the floor; then
//! the others.

use std::sync::Arc;
use std::time::Duration;

use crate::contender::{Contender, Ours};
use crate::load::{Plan, Seen, Streams};
use crate::process::{reset_peak, usage};
use crate::prompt::{PromptCost, Prompts};
use crate::{backend, bare};

/// Tokens of a long answer and of a short one; what the others cost is the difference.
pub(crate) const TOKENS: [u32; 2] = [100, 1];
pub(crate) const STREAMS: [usize; 3] = [1, 100, 1000];
/// Of each stream, where the backend paces its tokens: 20 a second.
pub(crate) const PACE_MS: u64 = 50;
/// Of each measurement.
const AT_LEAST: Duration = Duration::from_secs(3);
/// A round of paced answers takes five seconds, so this is two.
const AT_LEAST_PACED: Duration = Duration::from_secs(6);
/// Connections are taken, and records sent, for a moment after a client is served.
const SETTLE: Duration = Duration::from_millis(500);

/// One contender under one load.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    pub(crate) streams: usize,
    pub(crate) tokens: u32,
    pub(crate) paced: bool,
    pub(crate) cpu: Duration,
    pub(crate) peak_bytes: u64,
    pub(crate) seen: Seen,
}

/// All of a run.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) prompt: PromptCost,
    pub(crate) measured: Vec<Measured>,
}

pub(crate) async fn all(ours: &Ours, peers: &[Contender], prompts: &Arc<Prompts>) -> Results {
    let prompt = prompts.cost();
    for contender in std::iter::once(&ours.weir).chain(peers) {
        warm_up(contender, prompts).await;
    }
    let mut measured = Vec::new();
    for streams in STREAMS {
        for tokens in TOKENS {
            let plan = Plan { streams, tokens, at_least: AT_LEAST };
            measured.extend(beside_floor(ours, prompts, plan, 0).await);
            for peer in peers {
                measured.push(measure(peer, prompts, plan, false).await);
            }
        }
    }
    backend::pace(ours.backend.address, PACE_MS).await;
    let plan = Plan { streams: STREAMS[2], tokens: TOKENS[0], at_least: AT_LEAST_PACED };
    measured.extend(beside_floor(ours, prompts, plan, PACE_MS).await);
    for peer in peers {
        measured.push(measure(peer, prompts, plan, true).await);
    }
    Results { prompt, measured }
}

async fn warm_up(contender: &Contender, prompts: &Arc<Prompts>) {
    let plan = Plan { streams: 8, tokens: TOKENS[0], at_least: Duration::from_secs(1) };
    Streams::open(&contender.endpoint, plan.streams).await.run(prompts, plan).await;
}

async fn beside_floor(ours: &Ours, prompts: &Arc<Prompts>, plan: Plan, interval_ms: u64) -> [Measured; 2] {
    let weir = measure(&ours.weir, prompts, plan, interval_ms > 0).await;
    bare::repeat(ours.bare.endpoint.address, weir.seen.sample.clone(), interval_ms).await;
    let bare = measure(&ours.bare, prompts, plan, interval_ms > 0).await;
    [weir, bare]
}

async fn measure(contender: &Contender, prompts: &Arc<Prompts>, plan: Plan, paced: bool) -> Measured {
    let Plan { streams, tokens, .. } = plan;
    eprintln!("bench-gateway: {} with {streams} streams of {tokens} tokens", contender.name);
    let connections = Streams::open(&contender.endpoint, streams).await;
    tokio::time::sleep(SETTLE).await;
    reset_peak(contender.pid);
    let before = usage(contender.pid);
    let seen = connections.run(prompts, plan).await;
    tokio::time::sleep(SETTLE).await;
    let after = usage(contender.pid);
    let (cpu, peak_bytes) = (after.cpu - before.cpu, after.peak_bytes);
    Measured { name: contender.name, streams, tokens, paced, cpu, peak_bytes, seen }
}
