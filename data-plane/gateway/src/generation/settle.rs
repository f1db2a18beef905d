//! How a sequence is ended: record, reservation and gauge, exactly once, because each function here consumes what it
//! ends.

use std::time::Duration;

use weir_schemas::records::FinishReason;
use weir_schemas::rpc::worker::{FinishReason as WireReason, Finished};

use super::progress::WatchedRecord;
use super::{Admitted, Running};
use crate::record::{Counts, Ending};
use crate::routing::{Arrivals, End};

/// How long a worker has to answer a cancellation, which takes it one step; after that what arrived here counts.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Ends a sequence that its worker ended, or lost.
pub(super) fn end(running: Running, reason: FinishReason, finished: Option<Finished>) -> Counts {
    let arrivals = running.attempt.mailbox.arrivals();
    close(running.admitted, running.record, Ending { reason, finished, arrivals })
}

/// Ends a request that no replica took.
pub(super) fn never_ran(admitted: Admitted, record: WatchedRecord, reason: FinishReason) {
    close(admitted, record, Ending { reason, finished: None, arrivals: Arrivals::default() });
}

/// Stops a sequence that no one waits for any more, and ends it with the engine's own counts.
pub(super) async fn cancel(running: Running, reason: FinishReason) {
    let attempt = &running.attempt;
    let answered = async {
        attempt.link.cancel(attempt.handle).await;
        attempt.mailbox.ended().await
    };
    let (reason, finished) = match tokio::time::timeout(CANCEL_TIMEOUT, answered).await {
        Ok(End::Finished(finished)) => (engine_reason(&finished, reason), Some(*finished)),
        Ok(End::Lost) => (reason, None),
        Err(_) => {
            tracing::error!(
                request = %running.record.request(),
                worker = %attempt.link.worker(),
                "the worker did not answer a cancellation; what arrived here is charged"
            );
            attempt.link.forget(attempt.handle);
            (reason, None)
        }
    };
    end(running, reason, finished);
}

/// A cancellation may come too late; then the sequence ended as the engine says.
fn engine_reason(finished: &Finished, asked: FinishReason) -> FinishReason {
    match finished.reason() {
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

fn close(admitted: Admitted, record: WatchedRecord, ending: Ending) -> Counts {
    let counts = record.close(&ending);
    let served = ending.reason.is_chargeable(counts.generated_tokens);
    if served {
        let complete = matches!(ending.reason, FinishReason::Stop | FinishReason::Length);
        admitted.reservation.settle(counts.prompt_tokens, counts.generated_tokens, complete);
    } else {
        // Dropped unsettled, the reservation is abandoned: the request consumed nothing.
        drop(admitted.reservation);
    }
    counts
}
