//! One request from the wire to its step loop: checked, opened in the record log, handed over.

use std::sync::Arc;

use chrono::DateTime;
use weir_engine::{Class, SamplingParams, SequenceRequest, TenantIndex};
use weir_schemas::records::{Billing, ExecutionOutcome, Tier};
use weir_schemas::rpc::step_message::Update;
use weir_schemas::rpc::worker::{self as wire, FinishReason, Generate, StepMessage};
use weir_text::StopMatcher;

use super::WorkerService;
use crate::execution::{AttemptId, OpenExecution, Used};
use crate::host::{NewAttempt, refusal};
use crate::session::{CancelHandle, Session};

/// Why a request goes no further, in words that may be shown.
struct Refused {
    reason: FinishReason,
    message: String,
}

fn invalid(message: String) -> Refused {
    Refused { reason: FinishReason::RefusedInvalid, message }
}

/// Hands the request to its engine, or answers with the refusal.
pub(super) async fn start(service: &WorkerService, session: &Arc<Session>, generate: Generate) {
    let handle = generate.handle;
    let prompt_tokens = generate.prompt.len() as u64;
    let Some(cancel) = session.received(handle) else {
        tracing::error!(gateway = session.gateway, handle, "a handle that does not ascend is ignored");
        return;
    };
    if let Err(Refused { reason, message }) = hand_over(service, session, cancel, generate).await {
        session.finished(handle);
        tracing::info!(gateway = session.gateway, handle, ?reason, message, "refused");
        let finished = refusal(prompt_tokens, reason, message);
        let mut message = StepMessage::default();
        message.push(Update { handle, finished: Some(&finished), ..Update::default() });
        session.send(message);
    }
}

async fn hand_over(
    service: &WorkerService,
    session: &Arc<Session>,
    cancel: CancelHandle,
    generate: Generate,
) -> Result<(), Refused> {
    let id = attempt_id(&generate).map_err(invalid)?;
    let billing = billing(session, &generate).map_err(invalid)?;
    let execution = service.executions.begin(id, generate.prompt.len() as u64, billing).map_err(|error| {
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
    let handle = generate.handle;
    let (request, stop) = match sequence(service, id, generate, version.engine.text.eos_ids()) {
        Ok(parts) => parts,
        Err(message) => return refuse(execution, invalid(message)),
    };
    match version.engine.arrivals.reserve().await {
        Ok(permit) => {
            let session = session.clone();
            permit.send(Box::new(NewAttempt { session, handle, cancel, execution, request, stop }));
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

fn sequence(
    service: &WorkerService,
    id: AttemptId,
    generate: Generate,
    eos_ids: &[u32],
) -> Result<(SequenceRequest, StopMatcher), String> {
    let class = match generate.class() {
        wire::Class::Interactive => Class::Interactive,
        wire::Class::Batch => Class::Batch,
        wire::Class::Unspecified => return Err("class is not set".to_owned()),
    };
    let sampling = generate.sampling.ok_or("sampling is not set")?;
    let stop = StopMatcher::new(&generate.stop).map_err(|error| error.to_string())?;
    let cache_salt = service.salt.of(id.tenant);
    let request = SequenceRequest {
        prompt: generate.prompt,
        max_tokens: generate.max_tokens,
        sampling: SamplingParams {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            seed: sampling.seed,
            ..SamplingParams::GREEDY
        },
        logit_bias: Vec::new(),
        is_constrained: false,
        stop_tokens: eos_ids.to_vec(),
        cache_salt,
        tenant: tenant_index(&cache_salt),
        tenant_weight: generate.tenant_weight,
        class,
    };
    Ok((request, stop))
}

/// The tenant as a number, for the engine's fairness; the salt is as good as random.
fn tenant_index(salt: &[u8; 32]) -> TenantIndex {
    let (first, _) = salt.split_first_chunk::<8>().expect("a salt has 32 bytes");
    TenantIndex(u64::from_le_bytes(*first))
}
