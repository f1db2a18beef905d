//! What this gateway tells Prometheus: by model, never by tenant. The record log's gauges are `weir-metering`'s.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use weir_schemas::records::{ChargeData, FinishReason, RejectionReason};
use weir_schemas::rpc::worker::Class;

use crate::recent::Recent;

/// A model's name as clients ask for it; only names that the config knows become labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ModelLabel {
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    model: String,
    finish_reason: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct TokenLabels {
    model: String,
    kind: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReasonLabel {
    reason: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OverloadLabels {
    model: String,
    class: Word,
    action: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct SloLabels {
    model: String,
    target: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StatusLabel {
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabel {
    outcome: Word,
}

/// What became of a request with an Idempotency-Key, other than that it ran as any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdempotencyOutcome {
    Joined,
    Replayed,
    Conflict,
    /// Ended for want of a client.
    Abandoned,
}

/// What a deployment did with a request that it could not serve at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OverloadAction {
    Queued,
    Shrunk,
    Overflowed,
    Refused,
}

/// A label value from a closed set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Word(&'static str);

impl EncodeLabelValue for Word {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.0, encoder)
    }
}

/// Buckets from 0.1 ms to two minutes, each 2.2 times the one before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(0.000_1, 2.2, 19))
    }
}

type ModelHistogram = Family<ModelLabel, Histogram, Seconds>;

/// All of this gateway's own metrics.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    ttft: ModelHistogram,
    inter_token: ModelHistogram,
    queue: ModelHistogram,
    prefill: ModelHistogram,
    decode: ModelHistogram,
    requests: Family<RequestLabels, Counter>,
    tokens: Family<TokenLabels, Counter>,
    inflight: Family<ModelLabel, Gauge>,
    rejections: Family<ReasonLabel, Counter>,
    idempotency: Family<OutcomeLabel, Counter>,
    overload: Family<OverloadLabels, Counter>,
    slo_breaches: Family<SloLabels, Counter>,
    queue_depth: Family<ModelLabel, Gauge>,
    responses: Family<StatusLabel, Counter>,
    pub(crate) connections: Gauge,
    pub(crate) replicas_connected: Gauge,
    pub(crate) config_position: Gauge<u64, AtomicU64>,
    pub(crate) failovers: Counter,
    /// Choices.
    pub(crate) cut_by_limits: Counter,
    pub(crate) recent: Arc<Recent>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::unregistered();
        let mut seconds = |name: &str, help: &str, family: &ModelHistogram| {
            registry.register_with_unit(name, help, Unit::Seconds, family.clone());
        };
        seconds("ttft", "Arrival of a request to its first token", &metrics.ttft);
        seconds("inter_token", "Gap between two tokens of a request", &metrics.inter_token);
        seconds("queue", "Arrival at the worker to the first scheduled step", &metrics.queue);
        seconds("prefill", "First scheduled step to the first token", &metrics.prefill);
        seconds("decode", "First token to the last", &metrics.decode);
        registry.register("requests", "Requests ended, by how", metrics.requests.clone());
        registry.register("tokens", "Tokens charged: prompt, cached, generated", metrics.tokens.clone());
        registry.register("inflight", "Requests admitted and not ended", metrics.inflight.clone());
        registry.register("rejections", "Requests refused, by reason", metrics.rejections.clone());
        registry.register(
            "idempotency",
            "Requests with an Idempotency-Key that joined a running one, had a kept answer, were refused as a conflict, \
             or were ended for want of a client",
            metrics.idempotency.clone(),
        );
        registry.register(
            "overload",
            "Requests that could not be served at once, by what was done with them: queued, shrunk, overflowed, refused",
            metrics.overload.clone(),
        );
        registry.register(
            "slo_breaches",
            "Requests served whose time to first token (ttft) or mean gap between tokens (itl) was over the target",
            metrics.slo_breaches.clone(),
        );
        registry.register(
            "queue_depth",
            "Sequences that wait for a seat at the ready replicas",
            metrics.queue_depth.clone(),
        );
        registry.register("responses", "HTTP responses, by status", metrics.responses.clone());
        registry.register("connections", "HTTP connections", metrics.connections.clone());
        registry.register("replicas_connected", "Workers with a session", metrics.replicas_connected.clone());
        registry.register(
            "config_position",
            "Position of the config in force",
            metrics.config_position.clone(),
        );
        registry.register("failovers", "Requests sent to a second replica", metrics.failovers.clone());
        registry.register(
            "answers_cut_by_limits",
            "Choices that ended before their max_tokens because a limit on tokens and its debt were used up",
            metrics.cut_by_limits.clone(),
        );
        metrics
    }

    fn unregistered() -> Self {
        let histogram = || Family::new_with_constructor(Seconds);
        Self {
            ttft: histogram(),
            inter_token: histogram(),
            queue: histogram(),
            prefill: histogram(),
            decode: histogram(),
            requests: Family::default(),
            tokens: Family::default(),
            inflight: Family::default(),
            rejections: Family::default(),
            idempotency: Family::default(),
            overload: Family::default(),
            slo_breaches: Family::default(),
            queue_depth: Family::default(),
            responses: Family::default(),
            connections: Gauge::default(),
            replicas_connected: Gauge::default(),
            config_position: Gauge::default(),
            failovers: Counter::default(),
            cut_by_limits: Counter::default(),
            recent: Arc::default(),
        }
    }

    /// The gap histogram of a model, to be observed once a token.
    pub(crate) fn inter_token(&self, model: &str) -> Histogram {
        self.inter_token.get_or_create(&label(model)).clone()
    }

    pub(crate) fn inflight(&self, model: &str) -> Gauge {
        self.inflight.get_or_create(&label(model)).clone()
    }

    /// Requests of a model that are admitted and not ended.
    pub(crate) fn inflight_now(&self, model: &str) -> i64 {
        self.inflight.get(&label(model)).map_or(0, |gauge| gauge.get())
    }

    pub(crate) fn response(&self, status: u16) {
        self.responses.get_or_create(&StatusLabel { status }).inc();
    }

    pub(crate) fn rejection(&self, reason: RejectionReason) {
        self.rejections.get_or_create(&ReasonLabel { reason: Word(rejection_word(reason)) }).inc();
    }

    pub(crate) fn idempotency(&self, outcome: IdempotencyOutcome) {
        let outcome = Word(match outcome {
            IdempotencyOutcome::Joined => "joined",
            IdempotencyOutcome::Replayed => "replayed",
            IdempotencyOutcome::Conflict => "conflict",
            IdempotencyOutcome::Abandoned => "abandoned",
        });
        self.idempotency.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub(crate) fn overload(&self, model: &str, class: Class, action: OverloadAction) {
        let class = Word(match class {
            Class::Batch => "batch",
            Class::Interactive | Class::Unspecified => "interactive",
        });
        let action = Word(match action {
            OverloadAction::Queued => "queued",
            OverloadAction::Shrunk => "shrunk",
            OverloadAction::Overflowed => "overflowed",
            OverloadAction::Refused => "refused",
        });
        self.overload.get_or_create(&OverloadLabels { model: model.to_owned(), class, action }).inc();
    }

    /// Sequences that wait at a model's replicas now.
    pub(crate) fn queue_depth(&self, model: &str, waiting: u64) {
        self.queue_depth.get_or_create(&label(model)).set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Counts a request that ended, by its charge record.
    pub(crate) fn ended(&self, charge: &ChargeData) {
        self.recent.ended(charge);
        let model = label(&charge.requested_model);
        let seconds = |us: u64| Duration::from_micros(us).as_secs_f64();
        if let Some(ttft_us) = charge.ttft_us {
            self.ttft.get_or_create(&model).observe(seconds(ttft_us));
            self.queue.get_or_create(&model).observe(seconds(charge.queue_us));
            self.prefill.get_or_create(&model).observe(seconds(charge.prefill_us));
            self.decode.get_or_create(&model).observe(seconds(charge.decode_us));
        }
        for (target, met) in [("ttft", charge.slo.ttft_met), ("itl", charge.slo.itl_met)] {
            if met == Some(false) {
                let labels = SloLabels { model: model.model.clone(), target: Word(target) };
                self.slo_breaches.get_or_create(&labels).inc();
            }
        }
        let finish_reason = Word(finish_word(charge.finish_reason));
        self.requests.get_or_create(&RequestLabels { model: model.model.clone(), finish_reason }).inc();
        for (kind, count) in [
            ("prompt", charge.prompt_tokens),
            ("cached_prompt", charge.cached_prompt_tokens),
            ("generated", charge.generated_tokens),
        ] {
            let labels = TokenLabels { model: model.model.clone(), kind: Word(kind) };
            self.tokens.get_or_create(&labels).inc_by(count);
        }
    }
}

fn label(model: &str) -> ModelLabel {
    ModelLabel { model: model.to_owned() }
}

fn rejection_word(reason: RejectionReason) -> &'static str {
    match reason {
        RejectionReason::RateLimit => "rate_limit",
        RejectionReason::Budget => "budget",
        RejectionReason::Capacity => "capacity",
        RejectionReason::ModelWarming => "model_warming",
        RejectionReason::RecordLogFull => "record_log_full",
    }
}

fn finish_word(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Cancelled => "cancelled",
        FinishReason::Deadline => "deadline",
        FinishReason::ReplicaLost => "replica_lost",
        FinishReason::Error => "error",
        FinishReason::Rejected => "rejected",
        FinishReason::ModelWarming => "model_warming",
    }
}
