//! What every process has: a runtime, the wall clock, signals, and the registry behind its `/metrics`.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir_schemas::clock::Clock;

use crate::ops::ReadyProbe;
use crate::{ConfigArgs, config, logging};

/// Renders `/metrics`.
pub(crate) type MetricsText = Arc<dyn Fn() -> String + Send + Sync>;

/// The process around its components.
#[derive(Debug)]
pub(crate) struct Process {
    /// Components register here while they start.
    pub(crate) registry: Registry,
    /// Set by the first SIGINT or SIGTERM.
    pub(crate) cancel: CancellationToken,
    /// The binary's own tasks.
    pub(crate) tasks: TaskTracker,
    registered: Arc<OnceLock<Registry>>,
}

impl Process {
    fn new() -> Self {
        Self {
            registry: Registry::default(),
            cancel: CancellationToken::new(),
            tasks: TaskTracker::new(),
            registered: Arc::default(),
        }
    }

    /// The wall clock: made here only.
    #[expect(clippy::disallowed_methods, reason = "this is main's clock, which everyone else is handed")]
    pub(crate) fn clock() -> Clock {
        Clock::new(chrono::Utc::now)
    }

    /// Renders the registry once [`Process::registered`] was called; before, nothing.
    pub(crate) fn metrics_text(&self) -> MetricsText {
        let registered = self.registered.clone();
        Arc::new(move || {
            let mut text = String::new();
            if let Some(registry) = registered.get()
                && let Err(error) = encode(&mut text, registry)
            {
                tracing::error!(%error, "the metrics cannot be encoded");
            }
            text
        })
    }

    /// The same answer, and "stopping" from the signal on.
    pub(crate) fn ready_until_stopped(&self, ready: ReadyProbe) -> ReadyProbe {
        let cancel = self.cancel.clone();
        Arc::new(move || if cancel.is_cancelled() { Err("stopping".to_owned()) } else { ready() })
    }

    /// Everything has been registered.
    pub(crate) fn registered(&mut self) {
        if self.registered.set(std::mem::take(&mut self.registry)).is_err() {
            tracing::error!("metrics were registered twice");
        }
    }
}

/// Runs a component alone: reads its file, checks it, and runs it until a signal.
pub(crate) fn run_alone<C, F>(
    args: &ConfigArgs,
    check: impl FnOnce(config::RawFile) -> anyhow::Result<C>,
    serve: impl FnOnce(C, crate::ops::RawConfig, Process) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let loaded = config::load(&args.config, args.check_config)?;
    let (log, ops) = (loaded.raw.log.clone(), loaded.raw.ops.clone());
    let config = check(loaded.raw)?;
    if args.check_config {
        crate::screen::say(&format!("{} is right", args.config.display()));
        return Ok(());
    }
    logging::install(&log)?;
    for key in &loaded.unknown_keys {
        tracing::warn!(key, "unknown key in the configuration file; it has no effect");
    }
    block_on(async |mut process| {
        // STYLE: unknown keys are a warning and a gauge.
        let unknown = prometheus_client::metrics::gauge::Gauge::<i64>::default();
        unknown.set(i64::try_from(loaded.unknown_keys.len()).unwrap_or(i64::MAX));
        process.registry.register(
            "weir_config_unknown_keys",
            "Keys of the configuration file without effect",
            unknown,
        );
        serve(config, ops, process).await
    })
}

/// What arrives sooner after the first signal is the same wish: `timeout`, and a shell with `kill`, signal a process
/// and then its whole group.
const SECOND_SIGNAL_AFTER: Duration = Duration::from_millis(500);

/// Runs `serve` on a fresh runtime. The first SIGINT or SIGTERM cancels; a later one stops without waiting.
pub(crate) fn block_on<T>(serve: impl AsyncFnOnce(Process) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let outcome = runtime.block_on(async {
        let process = Process::new();
        let mut signals = Signals::new()?;
        let (cancel, tasks) = (process.cancel.clone(), process.tasks.clone());
        let mut served = std::pin::pin!(serve(process));
        let outcome = tokio::select! {
            outcome = &mut served => outcome,
            () = signals.next() => {
                tracing::info!("asked to stop");
                cancel.cancel();
                tokio::select! {
                    outcome = &mut served => outcome,
                    () = signals.next_after(SECOND_SIGNAL_AFTER) => {
                        Err(anyhow::anyhow!("stopped without waiting, as asked by a second signal"))
                    }
                }
            }
        };
        cancel.cancel();
        if outcome.is_ok() {
            tasks.close();
            tasks.wait().await;
        }
        outcome
    });
    runtime.shutdown_background();
    outcome
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn next_after(&mut self, pause: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < pause {
            self.next().await;
        }
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
