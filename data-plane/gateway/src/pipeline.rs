//! The stages of a request between its parsed form and its stream, in order, each in its own module: resolve → render
//! and tokenise → place → admit → open the record → route. What comes out is a [`Generation`] and how to name the answer.

mod placement;

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use weir_metering::LogError;
use weir_schemas::clock::Clock;
use weir_schemas::config_snapshot::{PinnedVersion, Slo};
use weir_schemas::ids::{RequestId, VersionId};
use weir_schemas::records::{ChargeData, FinishReason, GapStats, RejectionReason, SloOutcome};
use weir_schemas::rpc::worker::{Billing, Generate, Sampling, TokenBias};
use weir_text::{AnswerParser, TextModel};

use crate::admission::{Admission, LimitStates, Request, RequestSize, Reservation};
use crate::authenticate::Principal;
use crate::error::GatewayError;
use crate::generation::{Admitted, Generation, GenerationParts};
use crate::grammar;
use crate::indexed_config::IndexedConfig;
use crate::model_texts::ModelTexts;
use crate::openai::{CompletionRequest, ParameterError};
use crate::output_budget::{self, Ceiling};
use crate::overload::{self, Relief};
use crate::reading;
use crate::record::{Received, Recorder};
use crate::rejections::Rejections;
use crate::resolve::request_hash;
use crate::routing::{Chosen, Expected, Link, NoReplica, Registry, Wanted};
use crate::tokenise::Tokeniser;
use placement::{Placed, Target, class};

/// Everything that the stages need.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) clock: Clock,
    pub(crate) admission: Arc<Admission>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) texts: Arc<ModelTexts>,
    pub(crate) tokeniser: Tokeniser,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) rejections: Arc<Rejections>,
    pub(crate) generation: Arc<GenerationParts>,
}

/// A parsed request with what is known of its arrival.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) request_id: RequestId,
    pub(crate) at: DateTime<Utc>,
    pub(crate) instant: Instant,
    pub(crate) principal: Principal,
    pub(crate) project: Option<String>,
    /// `sha256:` of its Idempotency-Key and what came with it.
    pub(crate) idempotency_key_hash: Option<String>,
    /// The config in force on arrival decides everything.
    pub(crate) config: Arc<IndexedConfig>,
    pub(crate) request: CompletionRequest,
}

/// A request that runs.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) generation: Generation,
    pub(crate) limits: LimitStates,
    /// What answers, as clients name it.
    pub(crate) model: String,
    pub(crate) artifact_digest: String,
    pub(crate) text: Arc<TextModel>,
    /// What it met at its replica, and what its deployment aims at.
    pub(crate) load: (Expected, Slo),
    /// What it got instead of what it asked for.
    pub(crate) relief: Relief,
}

/// A request that may run.
#[derive(Debug)]
struct Prepared {
    target: Target,
    relief: Relief,
    chosen: Chosen,
    give_up_after: Duration,
    generate: Generate,
    grammar_asked_by: Option<grammar::AskedBy>,
    parser: Option<AnswerParser>,
    reservation: Reservation,
    limits: LimitStates,
    context_tokens: u64,
    text: Arc<TextModel>,
}

/// Why a request is not prepared.
enum Stop {
    Refused(GatewayError),
    /// This one has room for it.
    Overflow(Box<Target>),
}

impl<E: Into<GatewayError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Refused(error.into())
    }
}

impl Pipeline {
    /// Takes a request through all stages up to its dispatch. Dropping the future at any point leaves nothing held.
    pub(crate) async fn start(&self, arrived: Arrived) -> Result<Started, GatewayError> {
        let (principal, config) = (arrived.principal, arrived.config.clone());
        let model = arrived.request.model.clone();
        let started = self.run(arrived).await;
        if let Err(error) = &started
            && let Some(reason) = rejection_reason(error)
        {
            self.generation.metrics.rejection(reason);
            // Only names that the config knows are counted, so the number of counters is bounded.
            if config.alias(&model).is_some() {
                self.rejections.count(self.clock.now(), principal.tenant, &model, reason);
            }
        }
        started
    }

    async fn run(&self, arrived: Arrived) -> Result<Started, GatewayError> {
        let Arrived { request_id, config, request, .. } = &arrived;
        let target = Target::of(config, &request.model, *request_id)?;
        let mut received = Received::new(
            self.recorder.clone(),
            *request_id,
            uncharged(&arrived, target.version.id, target.slo),
        );
        let prepared = match self.prepare_somewhere(&arrived, target).await {
            Ok(prepared) => prepared,
            Err(error) => {
                received.refused();
                return Err(error);
            }
        };
        let Prepared { target, relief, chosen, generate, reservation, limits, text, .. } = prepared;
        received.decided(target.version.id, slo_outcome(target.slo), relief.granted_max_tokens);
        self.count_overload(request, relief, chosen.expected);
        let record = received.open(generate.prompt.len() as u64, arrived.instant).map_err(log_refused)?;
        let load = (chosen.expected, target.slo);
        let admitted = Admitted {
            config: config.clone(),
            version: target.version.id,
            model: request.model.clone(),
            generate,
            reservation,
            arrived: arrived.instant,
            context_tokens: prepared.context_tokens,
            param: request.input.param(),
            grammar_asked_by: prepared.grammar_asked_by,
            load,
            give_up_at: arrived.instant + prepared.give_up_after,
            parser: prepared.parser,
        };
        let generation = Generation::start(self.generation.clone(), admitted, chosen.link, record)?;
        let Target { model, version, .. } = target;
        Ok(Started { generation, limits, model, artifact_digest: version.digest, text, load, relief })
    }

    /// At the model that was asked for, or at the one that takes what that one has no room for.
    async fn prepare_somewhere(&self, arrived: &Arrived, asked: Target) -> Result<Prepared, GatewayError> {
        let smaller = match self.prepare(arrived, asked.clone(), true).await {
            Ok(prepared) => return Ok(prepared),
            Err(Stop::Refused(error)) => return Err(error),
            Err(Stop::Overflow(smaller)) => *smaller,
        };
        if let Ok(prepared) = self.prepare(arrived, smaller, false).await
            && !overload::is_overloaded(prepared.target.slo, prepared.chosen.expected)
        {
            let relief = Relief { is_overflow: true, ..prepared.relief };
            return Ok(Prepared { relief, ..prepared });
        }
        // It cannot read the request, or has no room for it any more.
        self.prepare(arrived, asked, false).await.map_err(|stop| match stop {
            Stop::Refused(error) => error,
            Stop::Overflow(_) => GatewayError::Internal("overflow where there is none"),
        })
    }

    /// Everything that may still refuse the request, up to and with its reservation.
    async fn prepare(&self, arrived: &Arrived, target: Target, may_overflow: bool) -> Result<Prepared, Stop> {
        let Arrived { request_id, config, request, principal, .. } = arrived;
        let version = &target.version;
        if config.budget_exhausted(principal.tenant) {
            return Err(GatewayError::BudgetSpent.into());
        }
        let warming = |none| no_replica(none, request);
        let replica_tokens = self.registry.max_sequence_tokens(config, version.id).map_err(warming)?;
        let text = self.text(arrived, version).await?;
        let ceiling = Ceiling::new(config, *principal, &request.model, version, replica_tokens);
        let (input, context) = (request.input.clone(), ceiling.context_tokens());
        check_bias(request, &text)?;
        let tools = request.tools.tools.clone();
        let prompt = self.tokeniser.tokenise(text.clone(), input, tools, context, arrived.at).await?;
        let parser = reading::parser(request, &text, prompt.opens_thought);
        let held = grammar::of(request, &text, prompt.opens_thought)?;
        let (grammar, grammar_asked_by) = held.map(|held| (held.grammar, held.asked_by)).unzip();
        let prompt = prompt.tokens;
        let prompt_tokens = prompt.len() as u64;
        let asked =
            output_budget::decide(&ceiling, prompt_tokens, request.max_tokens, request.input.param())?;
        let (max_tokens, choices) = (u64::from(asked), u64::from(request.n));
        let wanted = Wanted { class: class(request.tier), prompt_tokens, max_tokens, choices };
        let Placed { chosen, terms } = self.place(arrived, &target, wanted, may_overflow)?;
        let max_tokens = terms.max_output_tokens.map_or(asked, |most| asked.min(most));
        let granted_max_tokens = (max_tokens < asked).then_some(max_tokens);
        let relief = Relief { granted_max_tokens, ..Relief::default() };
        let size = RequestSize { prompt_tokens, max_tokens: u64::from(max_tokens), choices };
        let asks = Request { principal: *principal, model: &request.model, version: version.id, size };
        let (reservation, limits) = self.admission.admit(config, asks)?;
        let tenant_weight = config.tenant(principal.tenant).map_or(1, |tenant| tenant.weight);
        let generate = Generate {
            handle: 0,
            request_id: request_id.to_string(),
            attempt: 0,
            tenant_id: principal.tenant.to_string(),
            version_id: version.id.to_string(),
            prompt,
            max_tokens,
            sampling: Some(sampling(request, *request_id)),
            stop: request.stop.clone(),
            class: wanted.class.into(),
            tenant_weight,
            n: request.n,
            billing: Some(billing(arrived)),
            grammar,
            shown_control_tokens: reading::shown_control_tokens(request, &text),
        };
        Ok(Prepared {
            target,
            relief,
            chosen,
            give_up_after: terms.give_up_after,
            generate,
            grammar_asked_by,
            parser,
            reservation,
            limits,
            context_tokens: ceiling.context_tokens(),
            text,
        })
    }

    async fn text(&self, arrived: &Arrived, version: &PinnedVersion) -> Result<Arc<TextModel>, GatewayError> {
        if let Some(text) = self.texts.get_built(version) {
            return Ok(text);
        }
        let ready = self.registry.ready(&arrived.config, version.id);
        let links: Vec<Arc<Link>> = ready.into_iter().map(|(link, _)| link).collect();
        self.texts.get(version, &links).await.map_err(|error| {
            tracing::error!(version = %version.id, error = &error as &dyn std::error::Error, "no model text");
            no_replica(self.registry.warming(version.id), &arrived.request)
        })
    }
}

/// The charge of a request that nothing has been done for.
fn uncharged(arrived: &Arrived, version: VersionId, slo: Slo) -> ChargeData {
    let Arrived { at, principal, project, idempotency_key_hash, config, request, .. } = arrived;
    ChargeData {
        tenant: principal.tenant,
        key: principal.key,
        project: project.clone(),
        client_request_id: request.client_request_id.clone(),
        idempotency_key_hash: idempotency_key_hash.clone(),
        requested_model: request.model.clone(),
        version,
        tier: request.tier,
        stream: request.stream,
        n: request.n,
        granted_max_tokens: None,
        prompt_tokens: 0,
        cached_prompt_tokens: 0,
        generated_tokens: 0,
        reasoning_tokens: 0,
        finish_reason: FinishReason::Cancelled,
        received_at: *at,
        finished_at: *at,
        queue_us: 0,
        prefill_us: 0,
        ttft_us: None,
        decode_us: 0,
        inter_token: GapStats::default(),
        slo: slo_outcome(slo),
        replicas: Vec::new(),
        preemptions: 0,
        config_revision: config.revision(),
        sequence: 0,
        recovered: false,
    }
}

/// Targets whose outcome is not known yet.
fn slo_outcome(slo: Slo) -> SloOutcome {
    SloOutcome { ttft_target_ms: slo.ttft_ms, itl_target_ms: slo.itl_ms, ttft_met: None, itl_met: None }
}

/// What the worker's record says for us, should this gateway be lost with its disk.
fn billing(arrived: &Arrived) -> Billing {
    let Arrived { at, principal, project, idempotency_key_hash, request, .. } = arrived;
    Billing {
        key_id: principal.key.to_string(),
        project: project.clone(),
        client_request_id: request.client_request_id.clone(),
        idempotency_key_hash: idempotency_key_hash.clone(),
        requested_model: request.model.clone(),
        received_at_us: at.timestamp_micros(),
    }
}

fn sampling(request: &CompletionRequest, request_id: RequestId) -> Sampling {
    let options = &request.sampling;
    Sampling {
        temperature: options.temperature,
        top_p: options.top_p,
        top_k: options.top_k,
        min_p: options.min_p,
        // Without a seed each request has its own noise.
        seed: options.seed.unwrap_or_else(|| request_hash(request_id)),
        presence_penalty: options.presence_penalty,
        frequency_penalty: options.frequency_penalty,
        repetition_penalty: options.repetition_penalty,
        logit_bias: request.logit_bias.iter().map(|&(token, bias)| TokenBias { token, bias }).collect(),
        logprobs: request.logprobs,
    }
}

fn check_bias(request: &CompletionRequest, text: &TextModel) -> Result<(), GatewayError> {
    let size = text.vocab_size();
    match request.logit_bias.iter().find(|(token, _)| *token as usize >= size) {
        Some((token, _)) => {
            let message = format!("Invalid 'logit_bias': token {token} is not below {size}.");
            Err(ParameterError::invalid("logit_bias", message).into())
        }
        None => Ok(()),
    }
}

fn no_replica(none: NoReplica, request: &CompletionRequest) -> GatewayError {
    match none {
        NoReplica::Warming { retry_after } => {
            GatewayError::ModelWarming { model: request.model.clone(), retry_after }
        }
        NoReplica::TooLong { max_sequence_tokens } => GatewayError::ContextLength {
            limit_tokens: max_sequence_tokens,
            prompt_tokens: 0,
            output_tokens: 0,
            param: request.input.param(),
        },
    }
}

fn log_refused(error: LogError) -> GatewayError {
    let cause = &error as &dyn std::error::Error;
    // The log itself says loudly when it begins to refuse; here it would be once a request.
    match error.is_refusal() {
        true => tracing::debug!(error = cause, "the record log takes no new request"),
        false => tracing::error!(error = cause, "a request could not be opened in the record log"),
    }
    GatewayError::RecordLogFull
}

/// What counts as shed load, so that shedding cannot flatter goodput. A request that was opened has a record of its
/// own and is not counted again.
fn rejection_reason(error: &GatewayError) -> Option<RejectionReason> {
    match error {
        GatewayError::Admission(_) => Some(RejectionReason::RateLimit),
        GatewayError::BudgetSpent => Some(RejectionReason::Budget),
        GatewayError::Capacity { .. } => Some(RejectionReason::Capacity),
        GatewayError::ModelWarming { .. } => Some(RejectionReason::ModelWarming),
        GatewayError::RecordLogFull => Some(RejectionReason::RecordLogFull),
        GatewayError::Auth(_)
        | GatewayError::Parameter(_)
        | GatewayError::BodyTooLarge { .. }
        | GatewayError::BodyTimeout
        | GatewayError::BodyUnreadable
        | GatewayError::UnknownUrl { .. }
        | GatewayError::MethodNotAllowed { .. }
        | GatewayError::UnknownModel { .. }
        | GatewayError::Template { .. }
        | GatewayError::ContextLength { .. }
        | GatewayError::Idempotency(_)
        | GatewayError::Stopping
        | GatewayError::ReplicaLost
        | GatewayError::EngineFailed
        | GatewayError::Deadline { .. }
        | GatewayError::Internal(_) => None,
    }
}
