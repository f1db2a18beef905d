//! How a request is ended: record, reservation and gauge, exactly once, because each function here consumes what it
//! ends.

use std::time::Duration;

use weir_schemas::records::FinishReason;
use weir_schemas::rpc::worker::{FinishReason as WireReason, Finished};

use super::progress::{WatchedRecord, arrivals};
use super::{Admitted, Attempt, Running};
use crate::record::{Counts, Ending};
use crate::routing::{Arrivals, End};

/// How long a worker has to answer a cancellation, which takes it one step; after that what arrived here counts.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Ends a request whose choices have all ended, each as it did.
pub(super) fn end(running: Running, reason: FinishReason) -> Counts {
    let finished = finished(&running.attempt);
    let arrivals = arrivals(&running.attempt.mailboxes);
    close(running.admitted, running.record, Ending { reason, finished, arrivals })
}

/// Ends a request that no replica took.
pub(super) fn never_ran(admitted: Admitted, record: WatchedRecord, reason: FinishReason) {
    close(admitted, record, Ending { reason, finished: None, arrivals: Arrivals::default() });
}

/// Stops what no one waits for any more, and ends it with the engine's own counts.
pub(super) async fn cancel(running: Running, reason: FinishReason) {
    let attempt = &running.attempt;
    let answered = async {
        for handle in attempt.handles() {
            attempt.link.cancel(handle).await;
        }
        attempt.ended().await;
    };
    if tokio::time::timeout(CANCEL_TIMEOUT, answered).await.is_err() {
        tracing::error!(
            request = %running.record.request(),
            worker = %attempt.link.worker(),
            "the worker did not answer a cancellation; what arrived here is charged"
        );
        attempt.handles().for_each(|handle| attempt.link.forget(handle));
    }
    let reason = finished(attempt).map_or(reason, |finished| engine_reason(finished.reason(), reason));
    end(running, reason);
}

/// A cancellation may come too late; then the request ended as the engine says.
fn engine_reason(ended: WireReason, asked: FinishReason) -> FinishReason {
    match ended {
        WireReason::Stop => FinishReason::Stop,
        WireReason::Length => FinishReason::Length,
        WireReason::Cancelled => asked,
        WireReason::Error | WireReason::Unspecified => FinishReason::Error,
        WireReason::RefusedInvalid
        | WireReason::RefusedNeverFits
        | WireReason::RefusedNotLoaded
        | WireReason::RefusedFull => FinishReason::Rejected,
    }
}

/// What the engine says of all choices, if it has said it of each: the prompt once, as the one had it that got furthest, and
/// why the request ended, which is the reason of the first choice that no stop condition ended.
fn finished(attempt: &Attempt) -> Option<Finished> {
    let ends = attempt.mailboxes.iter().map(|mailbox| match mailbox.end() {
        Some(End::Finished(finished)) => Some(*finished),
        Some(End::Lost) | None => None,
    });
    let each: Vec<Finished> = ends.collect::<Option<_>>()?;
    let reached = |finished: &Finished| finished.cached_prompt_tokens + finished.computed_prompt_tokens;
    let furthest = each.iter().rev().max_by_key(|finished| reached(finished))?;
    let unstopped = each.iter().find(|finished| finished.reason() != WireReason::Stop);
    Some(Finished {
        reason: unstopped.map_or(WireReason::Stop, Finished::reason).into(),
        generated_tokens: each.iter().map(|finished| finished.generated_tokens).sum(),
        preemptions: each.iter().map(|finished| finished.preemptions).sum(),
        ..furthest.clone()
    })
}

fn close(admitted: Admitted, record: WatchedRecord, ending: Ending) -> Counts {
    let counts = record.close(&ending);
    let served = ending.reason.is_chargeable(counts.generated_tokens);
    if served {
        let complete =
            matches!(ending.reason, FinishReason::Stop | FinishReason::Length | FinishReason::ToolCalls);
        admitted.reservation.settle(counts.prompt_tokens, counts.generated_tokens, complete);
    } else {
        // Dropped unsettled, the reservation is abandoned: the request consumed nothing.
        drop(admitted.reservation);
    }
    counts
}
