//! What becomes of a request that would have to wait: the policy of its deployment and class, applied to what the best
//! replica lets expect. Pure.
//!
//! What a request may wait for others is what the deployment's target for its first token leaves beside its own prompt, less a
//! tenth of the target for what the estimate misses. A prompt that takes longer than the target by itself is no overload; a
//! quarter of the target is what it may wait. The deployment is overloaded for the request, so that its policy gives relief,
//! as soon as half of that would be gone: in time for the target to be kept.

use std::time::Duration;

use weir_schemas::config_snapshot::{OverloadPolicy, QueueBounds, Slo};

use crate::routing::Expected;

/// Shortest and longest wait that clients are told of before they come again.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// On what terms a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// From its arrival: if it has not begun to be computed by then, it is refused.
    pub(crate) give_up_after: Duration,
    /// What each choice of its answer is cut to.
    pub(crate) max_output_tokens: Option<u32>,
}

/// The request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) retry_after: Duration,
}

/// What a request got instead of what it asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Relief {
    /// Each choice of its answer was cut to so many tokens.
    pub(crate) granted_max_tokens: Option<u32>,
    /// Another model answers.
    pub(crate) is_overflow: bool,
}

/// How long a request may take, and has taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Age {
    /// From its arrival to its end.
    pub(crate) timeout: Duration,
    /// Since its arrival.
    pub(crate) elapsed: Duration,
}

/// The model to be asked whether it has room for the request.
pub(crate) fn smaller_model(policy: &OverloadPolicy, slo: Slo, expected: Expected) -> Option<&str> {
    match policy {
        OverloadPolicy::Overflow { model, .. } if is_overloaded(slo, expected) => Some(model),
        _ => None,
    }
}

/// What is done with a request that no other model takes.
pub(crate) fn terms(policy: &OverloadPolicy, slo: Slo, expected: Expected, age: Age) -> Result<Terms, Full> {
    let (bounds, max_output_tokens) = match policy {
        OverloadPolicy::Queue { bounds } | OverloadPolicy::Overflow { bounds, .. } => (*bounds, None),
        OverloadPolicy::Shed => {
            let max_wait_ms = whole_ms(bearable_wait_ms(slo, expected));
            (QueueBounds { max_depth: u32::MAX, max_wait_ms }, None)
        }
        OverloadPolicy::Shrink { max_output_tokens, bounds } => {
            (*bounds, Some(*max_output_tokens).filter(|_| is_overloaded(slo, expected)))
        }
    };
    let give_up_after = Duration::from_millis(bounds.max_wait_ms).min(age.timeout);
    let wait = Duration::try_from_secs_f64(expected.wait_ms / 1_000.0).unwrap_or(Duration::MAX);
    // Who finds a seat does not wait, however long it took until here.
    let wait = if wait.is_zero() { wait } else { wait.saturating_add(age.elapsed) };
    let depth = expected.queue_depth + expected.would_wait;
    let is_queue_full = expected.would_wait > 0 && depth > u64::from(bounds.max_depth);
    if is_queue_full || wait > give_up_after {
        let retry_after = wait.saturating_sub(give_up_after).clamp(RETRY_AFTER.0, RETRY_AFTER.1);
        return Err(Full { retry_after });
    }
    Ok(Terms { give_up_after, max_output_tokens })
}

/// Others before the request would take more than half of what it may wait.
pub(crate) fn is_overloaded(slo: Slo, expected: Expected) -> bool {
    expected.wait_ms > bearable_wait_ms(slo, expected) / 2.0
}

#[expect(clippy::cast_precision_loss, reason = "at most an hour")]
fn bearable_wait_ms(slo: Slo, expected: Expected) -> f64 {
    let target_ms = slo.ttft_ms as f64;
    (target_ms * 0.9 - expected.prefill_ms).max(target_ms / 4.0)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, at most an hour")]
fn whole_ms(ms: f64) -> u64 {
    ms.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: Slo = Slo { ttft_ms: 200, itl_ms: 100 };
    const BOUNDS: QueueBounds = QueueBounds { max_depth: 4, max_wait_ms: 1_000 };
    const NEW: Age = Age { timeout: Duration::from_secs(3_600), elapsed: Duration::ZERO };

    fn waiting(wait_ms: f64, queue_depth: u64) -> Expected {
        let is_full = wait_ms > 0.0;
        Expected { wait_ms, prefill_ms: 50.0, is_full, would_wait: is_full.into(), queue_depth }
    }

    fn run(give_up_ms: u64, max_output_tokens: Option<u32>) -> Result<Terms, Full> {
        Ok(Terms { give_up_after: Duration::from_millis(give_up_ms), max_output_tokens })
    }

    fn refuse(seconds: u64) -> Result<Terms, Full> {
        Err(Full { retry_after: Duration::from_secs(seconds) })
    }

    fn check(policy: &OverloadPolicy, expected: Expected, expected_terms: &Result<Terms, Full>) {
        assert_eq!(&terms(policy, SLO, expected, NEW), expected_terms, "{policy:?} {expected:?}");
    }

    #[test]
    fn a_queue_has_room_for_so_many_and_so_long() {
        let queue = OverloadPolicy::Queue { bounds: BOUNDS };
        check(&queue, waiting(0.0, 0), &run(1_000, None));
        check(&queue, waiting(1_000.0, 3), &run(1_000, None));
        check(&queue, waiting(10.0, 4), &refuse(1));
        check(&queue, waiting(5_000.0, 3), &refuse(4));
        check(&queue, waiting(1e9, 3), &refuse(60));
        check(&queue, waiting(f64::INFINITY, 3), &refuse(60));
        // Others wait, of a class behind this one, and there is a seat.
        check(&queue, waiting(0.0, 9), &run(1_000, None));
        // Of several choices each wants a place, though the first has a seat.
        check(&queue, Expected { would_wait: 4, ..waiting(0.0, 0) }, &run(1_000, None));
        check(&queue, Expected { would_wait: 5, ..waiting(0.0, 0) }, &refuse(1));
        check(&queue, Expected { would_wait: 2, ..waiting(10.0, 3) }, &refuse(1));
        let nobody = OverloadPolicy::Queue { bounds: QueueBounds { max_depth: 0, ..BOUNDS } };
        check(&nobody, waiting(10.0, 0), &refuse(1));
        check(&nobody, waiting(0.0, 0), &run(1_000, None));
        let brief = Age { timeout: Duration::from_millis(300), ..NEW };
        assert_eq!(terms(&queue, SLO, waiting(299.0, 0), brief), run(300, None));
        assert_eq!(terms(&queue, SLO, waiting(301.0, 0), brief), refuse(1));
        // What it has waited already counts, unless it finds a seat.
        let old = |ms| Age { elapsed: Duration::from_millis(ms), ..NEW };
        assert_eq!(terms(&queue, SLO, waiting(600.0, 0), old(400)), run(1_000, None));
        assert_eq!(terms(&queue, SLO, waiting(600.0, 0), old(401)), refuse(1));
        assert_eq!(terms(&queue, SLO, waiting(0.0, 0), old(5_000)), run(1_000, None));
    }

    #[test]
    fn shed_waits_as_long_as_the_target_can_be_kept() {
        check(&OverloadPolicy::Shed, waiting(130.0, 900), &run(130, None));
        check(&OverloadPolicy::Shed, waiting(131.0, 1), &refuse(1));
        // A long prompt runs where there is room for it.
        let long = |wait_ms| Expected { prefill_ms: 9_000.0, ..waiting(wait_ms, 0) };
        check(&OverloadPolicy::Shed, long(50.0), &run(50, None));
        check(&OverloadPolicy::Shed, long(51.0), &refuse(1));
    }

    #[test]
    fn shrink_cuts_only_under_overload_and_waits_within_bounds() {
        let shrink = OverloadPolicy::Shrink { max_output_tokens: 8, bounds: BOUNDS };
        check(&shrink, waiting(65.0, 1), &run(1_000, None));
        check(&shrink, waiting(66.0, 1), &run(1_000, Some(8)));
        check(&shrink, waiting(1_001.0, 1), &refuse(1));
        check(&shrink, waiting(66.0, 4), &refuse(1));
    }

    #[test]
    fn overflow_asks_the_smaller_model_only_under_overload_and_else_waits() {
        let overflow = OverloadPolicy::Overflow { model: "small".into(), bounds: BOUNDS };
        assert_eq!(smaller_model(&overflow, SLO, waiting(66.0, 1)), Some("small"));
        assert_eq!(smaller_model(&overflow, SLO, waiting(65.0, 1)), None);
        assert_eq!(smaller_model(&OverloadPolicy::Shed, SLO, waiting(66.0, 1)), None);
        check(&overflow, waiting(66.0, 1), &run(1_000, None));
        check(&overflow, waiting(1_001.0, 1), &refuse(1));
    }
}
