//! One request from the wire to its step loop: checked, opened in the record log, handed over.

use std::sync::Arc;

use chrono::DateTime;
use weir_engine::{Class, SamplingParams, SequenceRequest, TenantIndex};
use weir_schemas::records::{Billing, ExecutionOutcome, Tier};
use weir_schemas::rpc::step_message::Update;
use weir_schemas::rpc::worker::{self as wire, FinishReason, Generate, StepMessage};
use weir_text::{Grammar, GrammarMatcher, StopMatcher, TextModel};

use super::WorkerService;
use crate::execution::{AttemptId, OpenExecution, Used};
use crate::host::{NewAttempt, NewChoice, refusal};
use crate::session::{CancelHandle, Session};

/// Most choices of one request, as OpenAI's API has it.
const CHOICES_MAX: u32 = 128;

/// The marks of thoughts and of calls are few.
const SHOWN_MAX: usize = 16;

/// Why a request goes no further, in words that may be shown.
struct Refused {
    reason: FinishReason,
    message: String,
}

fn invalid(message: String) -> Refused {
    Refused { reason: FinishReason::RefusedInvalid, message }
}

/// Takes the request in; one with a grammar goes on by itself, so that others need not wait for it to be compiled.
pub(super) async fn start(service: &WorkerService, session: &Arc<Session>, generate: Generate) {
    let handle = generate.handle;
    let cancels: Option<Vec<_>> = handles(&generate).map(|handle| session.received(handle)).collect();
    let Some(cancels) = cancels else {
        tracing::error!(gateway = session.gateway, handle, "a handle that does not ascend is ignored");
        return;
    };
    if generate.grammar.is_none() {
        return hand_over_or_refuse(service, session, cancels, generate).await;
    }
    let place = service.grammars.place().await;
    let (service, session) = (service.clone(), session.clone());
    service.tasks.clone().spawn(async move {
        hand_over_or_refuse(&service, &session, cancels, generate).await;
        drop(place);
    });
}

/// One for each choice.
fn handles(generate: &Generate) -> std::ops::Range<u64> {
    generate.handle..generate.handle.saturating_add(u64::from(num_choices(generate)))
}

/// No more than are allowed, also of a request that is refused for asking for more.
fn num_choices(generate: &Generate) -> u32 {
    generate.n.clamp(1, CHOICES_MAX)
}

/// Hands the request to its engine, or answers with the refusal.
async fn hand_over_or_refuse(
    service: &WorkerService,
    session: &Arc<Session>,
    cancels: Vec<CancelHandle>,
    generate: Generate,
) {
    let (handle, handles, prompt_tokens) =
        (generate.handle, handles(&generate), generate.prompt.len() as u64);
    if let Err(Refused { reason, message }) = hand_over(service, session, cancels, generate).await {
        tracing::info!(gateway = session.gateway, handle, ?reason, message, "refused");
        let finished = refusal(prompt_tokens, reason, message);
        let mut message = StepMessage::default();
        for handle in handles {
            session.finished(handle);
            message.push(Update { handle, finished: Some(&finished), ..Update::default() });
        }
        session.send(message);
    }
}

async fn hand_over(
    service: &WorkerService,
    session: &Arc<Session>,
    cancels: Vec<CancelHandle>,
    mut generate: Generate,
) -> Result<(), Refused> {
    let id = attempt_id(&generate).map_err(invalid)?;
    let billing = billing(session, &generate).map_err(invalid)?;
    let (prompt_tokens, seats) = (generate.prompt.len() as u64, num_choices(&generate));
    let execution = service.executions.begin(id, prompt_tokens, seats, billing).map_err(|error| {
        let cause = &error as &dyn std::error::Error;
        // The log itself says loudly when it begins to refuse; here it would be once a request.
        match error.is_refusal() {
            true => tracing::debug!(error = cause, "the record log takes no new attempt"),
            false => tracing::error!(error = cause, "an attempt could not be opened in the record log"),
        }
        let message = "the worker cannot record new work now".to_owned();
        Refused { reason: FinishReason::RefusedFull, message }
    })?;
    let refuse = |execution: OpenExecution, refused: Refused| {
        execution.close(Used::default(), ExecutionOutcome::Refused);
        Err(refused)
    };
    let not_loaded =
        |message: &str| Refused { reason: FinishReason::RefusedNotLoaded, message: message.to_owned() };
    if service.draining.is_cancelled() {
        return refuse(execution, not_loaded("this worker is shutting down"));
    }
    let Some(version) = service.versions.ready(id.version) else {
        return refuse(execution, not_loaded("this worker does not have the version loaded"));
    };
    let text = &version.engine.text;
    let grammar = match grammar(service, &mut generate, text).await {
        Ok(grammar) => grammar,
        Err(message) => return refuse(execution, invalid(message)),
    };
    let choices = match choices(service, id, generate, text.eos_ids(), cancels, grammar) {
        Ok(choices) => choices,
        Err(message) => return refuse(execution, invalid(message)),
    };
    match version.engine.arrivals.reserve().await {
        Ok(permit) => {
            let session = session.clone();
            permit.send(Box::new(NewAttempt { session, execution, choices }));
            Ok(())
        }
        Err(_) => refuse(execution, not_loaded("the version is being unloaded")),
    }
}

fn attempt_id(generate: &Generate) -> Result<AttemptId, String> {
    Ok(AttemptId {
        request: generate.request_id.parse().map_err(|error| format!("request_id: {error}"))?,
        attempt: match generate.attempt {
            0 => return Err("attempt counts from 1".to_owned()),
            attempt => attempt,
        },
        tenant: generate.tenant_id.parse().map_err(|error| format!("tenant_id: {error}"))?,
        version: generate.version_id.parse().map_err(|error| format!("version_id: {error}"))?,
    })
}

/// What the execution record says for the ledger, which charges from it should the gateway be lost.
fn billing(session: &Session, generate: &Generate) -> Result<Option<Billing>, String> {
    let Some(told) = &generate.billing else { return Ok(None) };
    Ok(Some(Billing {
        gateway: session.gateway.parse().map_err(|error| format!("gateway_id: {error}"))?,
        key: told.key_id.parse().map_err(|error| format!("billing.key_id: {error}"))?,
        project: told.project.clone(),
        client_request_id: told.client_request_id.clone(),
        idempotency_key_hash: told.idempotency_key_hash.clone(),
        requested_model: told.requested_model.clone(),
        tier: match generate.class() {
            wire::Class::Interactive => Tier::Interactive,
            wire::Class::Batch => Tier::Batch,
            // Refused as soon as it has its record.
            wire::Class::Unspecified => return Ok(None),
        },
        received_at: DateTime::from_timestamp_micros(told.received_at_us)
            .ok_or("billing.received_at_us is no time")?,
    }))
}

/// The grammar to keep to, and the budget to keep in view.
async fn grammar(
    service: &WorkerService,
    generate: &mut Generate,
    text: &Arc<TextModel>,
) -> Result<Option<(Grammar, Option<u32>)>, String> {
    let Some(grammar) = generate.grammar.take() else { return Ok(None) };
    let budget = grammar.budget_aware.then_some(generate.max_tokens);
    let grammar = service.grammars.compile(text.clone(), grammar).await?;
    Ok(Some((grammar, budget)))
}

/// One sequence for each choice: the same prompt, noise of its own.
fn choices(
    service: &WorkerService,
    id: AttemptId,
    generate: Generate,
    eos_ids: &[u32],
    cancels: Vec<CancelHandle>,
    grammar: Option<(Grammar, Option<u32>)>,
) -> Result<Vec<NewChoice>, String> {
    if generate.n > CHOICES_MAX {
        return Err(format!("{} choices, at most {CHOICES_MAX} are allowed", generate.n));
    }
    let shown = generate.shown_control_tokens.clone();
    if shown.len() > SHOWN_MAX {
        return Err(format!("{} shown control tokens, at most {SHOWN_MAX} are allowed", shown.len()));
    }
    let (first, stop) = (generate.handle, generate.stop.clone());
    let request = sequence(service, id, generate, eos_ids)?;
    let choice = |(handle, cancel): (u64, CancelHandle)| {
        let mut request = request.clone();
        request.sampling.seed = seed_of_choice(request.sampling.seed, handle - first);
        let stop = StopMatcher::new(&stop).map_err(|error| error.to_string())?;
        let grammar = grammar.clone().map(|(grammar, budget)| GrammarMatcher::new(grammar, budget));
        request.is_constrained = grammar.is_some();
        Ok(NewChoice { handle, cancel, request, stop, shown: shown.clone(), grammar })
    };
    (first..).zip(cancels).map(choice).collect()
}

/// The first choice has the request's own, so that it is what the request alone would give.
fn seed_of_choice(seed: u64, choice: u64) -> u64 {
    seed.wrapping_add(choice.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn sequence(
    service: &WorkerService,
    id: AttemptId,
    generate: Generate,
    eos_ids: &[u32],
) -> Result<SequenceRequest, String> {
    let class = match generate.class() {
        wire::Class::Interactive => Class::Interactive,
        wire::Class::Batch => Class::Batch,
        wire::Class::Unspecified => return Err("class is not set".to_owned()),
    };
    let sampling = generate.sampling.ok_or("sampling is not set")?;
    let cache_salt = service.salt.of(id.tenant);
    Ok(SequenceRequest {
        prompt: generate.prompt,
        max_tokens: generate.max_tokens,
        sampling: SamplingParams {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            seed: sampling.seed,
            repetition_penalty: if sampling.repetition_penalty == 0.0 {
                1.0
            } else {
                sampling.repetition_penalty
            },
            frequency_penalty: sampling.frequency_penalty,
            presence_penalty: sampling.presence_penalty,
            logprobs: sampling.logprobs,
        },
        logit_bias: sampling.logit_bias.iter().map(|bias| (bias.token, bias.bias)).collect(),
        is_constrained: false,
        stop_tokens: eos_ids.to_vec(),
        cache_salt,
        tenant: tenant_index(&cache_salt),
        tenant_weight: generate.tenant_weight,
        class,
    })
}

/// The tenant as a number, for the engine's fairness; the salt is as good as random.
fn tenant_index(salt: &[u8; 32]) -> TenantIndex {
    let (first, _) = salt.split_first_chunk::<8>().expect("a salt has 32 bytes");
    TenantIndex(u64::from_le_bytes(*first))
}
