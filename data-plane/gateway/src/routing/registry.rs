//! The links to all workers that the config names, and the choice among them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use weir_schemas::config_snapshot::Alias;
use weir_schemas::ids::{VersionId, WorkerId};
use weir_schemas::rpc::worker::{Class, Generate, VersionLoad};

use super::expected_ttft::{Asked, Expected, UNMEASURED_PREFILL_TOKENS_PER_S, expect};
use super::link::{Link, LinkOptions, ReadyReplica};
use crate::indexed_config::IndexedConfig;

/// Told to clients while nothing is known of how long a load takes.
const UNMEASURED_LOAD_TIME: Duration = Duration::from_secs(5);

/// Why no replica was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoReplica {
    /// None is ready; the wait is measured from earlier loads where there were any.
    Warming { retry_after: Duration },
    /// Some are ready, and the request fits none of them.
    TooLong { max_sequence_tokens: u64 },
}

/// What a request wants of a replica.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) class: Class,
    pub(crate) prompt_tokens: u64,
    /// Of each choice.
    pub(crate) max_tokens: u64,
    pub(crate) choices: u64,
}

impl Wanted {
    pub(crate) fn by(generate: &Generate) -> Self {
        let (prompt_tokens, max_tokens) = (generate.prompt.len() as u64, u64::from(generate.max_tokens));
        Self { class: generate.class(), prompt_tokens, max_tokens, choices: u64::from(generate.n.max(1)) }
    }
}

/// Where a request goes, and what it meets there.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) link: Arc<Link>,
    pub(crate) expected: Expected,
}

/// All workers of this gateway.
#[derive(Debug)]
pub(crate) struct Registry {
    options: LinkOptions,
    links: Mutex<HashMap<WorkerId, Arc<Link>>>,
    load_times: Mutex<HashMap<VersionId, LoadTime>>,
    cancel: CancellationToken,
}

/// How long a version took from being asked for while not ready to being ready.
#[derive(Debug, Clone, Copy, Default)]
struct LoadTime {
    waiting_since: Option<Instant>,
    measured: Option<Duration>,
}

impl Registry {
    /// Links end when `cancel` is.
    pub(crate) fn new(options: LinkOptions, cancel: CancellationToken) -> Self {
        Self { options, links: Mutex::default(), load_times: Mutex::default(), cancel }
    }

    /// Told whenever what is ready where may have changed.
    pub(crate) fn ready_changes(&self) -> watch::Receiver<u64> {
        self.options.ready_changed.subscribe()
    }

    /// Starts, keeps and retires links so that there is one for each replica of the config.
    pub(crate) fn reconcile(&self, config: &IndexedConfig) {
        let mut links = self.links.lock();
        links.retain(|worker, link| {
            let named =
                |address: &str| config.replicas().iter().any(|r| r.worker == *worker && r.address == address);
            let keep = named(link.address());
            if !keep {
                link.retire();
            }
            keep
        });
        for replica in config.replicas() {
            links.entry(replica.worker).or_insert_with(|| {
                let link = Arc::new(Link::new(replica.worker, replica.address.clone(), self.options.clone()));
                self.options.tasks.spawn(link.clone().run(self.cancel.clone()));
                link
            });
        }
        drop(links);
        self.options.ready_changed.send_modify(|changes| *changes += 1);
    }

    /// Number of workers with a session.
    pub(crate) fn connected(&self) -> usize {
        self.links.lock().values().filter(|link| link.is_connected()).count()
    }

    /// Links whose worker can take requests for the version now.
    pub(crate) fn ready(&self, config: &IndexedConfig, version: VersionId) -> Vec<(Arc<Link>, ReadyReplica)> {
        let name = version.to_string();
        let links = self.links.lock();
        let ready: Vec<_> = config
            .workers(version)
            .iter()
            .filter_map(|worker| links.get(worker))
            .filter_map(|link| Some((link.clone(), link.ready(&name)?)))
            .collect();
        drop(links);
        if !ready.is_empty() {
            let mut load_times = self.load_times.lock();
            if let Some(load_time) = load_times.get_mut(&version)
                && let Some(since) = load_time.waiting_since.take()
            {
                load_time.measured = Some(since.elapsed());
            }
        }
        ready
    }

    /// What the ready replicas of an alias last said of themselves.
    pub(crate) fn ready_loads(&self, config: &IndexedConfig, alias: &Alias) -> Vec<VersionLoad> {
        let versions = alias.targets.iter().filter(|target| target.weight > 0).map(|target| target.version);
        let replicas = versions.flat_map(|version| self.ready(config, version));
        replicas.map(|(_, replica)| replica.load).collect()
    }

    /// The longest sequence that some ready replica can hold.
    pub(crate) fn max_sequence_tokens(
        &self,
        config: &IndexedConfig,
        version: VersionId,
    ) -> Result<u64, NoReplica> {
        let ready = self.ready(config, version);
        let longest = ready.iter().map(|(_, replica)| holds(replica)).max();
        longest.ok_or_else(|| self.warming(version))
    }

    /// The ready replica with the least expected time to first token that can hold the sequence, other than `tried`.
    pub(crate) fn choose(
        &self,
        config: &IndexedConfig,
        version: VersionId,
        wanted: Wanted,
        tried: &[WorkerId],
    ) -> Result<Chosen, NoReplica> {
        let mut ready = self.ready(config, version);
        ready.retain(|(link, _)| !tried.contains(&link.worker()));
        let Some(longest) = ready.iter().map(|(_, replica)| holds(replica)).max() else {
            return Err(self.warming(version));
        };
        let borrowed_rate = ready
            .iter()
            .map(|(_, replica)| replica.load.prefill_tokens_per_s)
            .filter(|rate| rate.is_finite() && *rate > 0.0)
            .reduce(f64::min)
            .unwrap_or(UNMEASURED_PREFILL_TOKENS_PER_S);
        let Wanted { class, prompt_tokens, max_tokens, choices } = wanted;
        let asked = Asked { class, prompt_tokens, choices };
        let sequence_tokens = prompt_tokens.saturating_add(max_tokens);
        let best = ready
            .into_iter()
            .filter(|(_, replica)| holds(replica) >= sequence_tokens)
            .map(|(link, ReadyReplica { load, sent })| {
                let expected = expect(&load, sent, asked, borrowed_rate);
                Chosen { link, expected }
            })
            .min_by(|a, b| a.expected.ttft_ms().total_cmp(&b.expected.ttft_ms()));
        best.ok_or(NoReplica::TooLong { max_sequence_tokens: longest })
    }

    /// Notes that the version is waited for, and tells how long a wait to expect.
    pub(crate) fn warming(&self, version: VersionId) -> NoReplica {
        let mut load_times = self.load_times.lock();
        let load_time = load_times.entry(version).or_default();
        let waited = load_time.waiting_since.get_or_insert_with(Instant::now).elapsed();
        let retry_after = match load_time.measured {
            Some(measured) => measured.saturating_sub(waited).max(Duration::from_secs(1)),
            None => UNMEASURED_LOAD_TIME,
        };
        NoReplica::Warming { retry_after }
    }
}

/// 0 means that the worker did not say.
fn holds(replica: &ReadyReplica) -> u64 {
    match replica.load.max_sequence_tokens {
        0 => u64::MAX,
        tokens => tokens,
    }
}
