//! Requests whose gateway is gone: charged from executions after the grace, and corrected by a close that comes later.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use weir_ledger::charge_orphans;
use weir_schemas::clock::Clock;
use weir_schemas::ids::{KeyId, RequestId};
use weir_schemas::records::{Billing, ChargeData, ExecutionData, ExecutionOutcome, FinishReason, Tier};
use weir_schemas::rpc::ledger::Record;

use crate::support::{GATEWAY, Ledger, UNPRICED, VERSION, WORKER, at, charge, charge_of, execution};
use crate::verify::check;

const GRACE: Duration = Duration::from_secs(60);
/// Several within the pause that starts the grace anew.
const STEP_SECONDS: usize = 10;
/// When the tests' ledger takes records, by its clock.
const NOW: i64 = 3_600;

/// Passes at these seconds after the records came. The running ledger has passes of its own, by its own clock, and a
/// pass does nothing while another is under way: hence some more at the end.
pub(crate) async fn passes(ledger: &Ledger, seconds: std::ops::RangeInclusive<i64>) -> i64 {
    let (first, last) = (*seconds.start(), *seconds.end());
    let mut charged = 0;
    for second in seconds.step_by(STEP_SECONDS).chain([last, last, last]) {
        debug_assert!(second >= first);
        let now = at(NOW + second);
        charged += charge_orphans(&ledger.pool, &Clock::new(move || now), GRACE).await.unwrap();
    }
    charged
}

/// What the gateway told the worker, as [`charge`] would say it.
pub(crate) fn billed(data: &mut ExecutionData) {
    data.billing = Some(Billing {
        gateway: GATEWAY,
        key: KeyId::from_u128(6),
        project: Some("search".into()),
        client_request_id: Some("client-7".into()),
        idempotency_key_hash: None,
        requested_model: "smollm2-135m-instruct".into(),
        tier: Tier::Interactive,
        received_at: at(0),
    });
}

async fn execute(ledger: &Ledger, records: impl IntoIterator<Item = Record>) {
    ledger.try_append(&WORKER.to_string(), records.into_iter().collect()).await.unwrap();
}

type Row = (i16, String, i16, i64, i64, i64, String);

async fn rows(ledger: &Ledger, request: u128) -> Vec<Row> {
    sqlx::query_as(
        "SELECT entry, reason, requests, prompt_tokens, cached_prompt_tokens, generated_tokens, amount::text
         FROM ledger_charges WHERE request_id = $1 ORDER BY entry",
    )
    .bind(RequestId::from_u128(request).to_string())
    .fetch_all(&ledger.pool)
    .await
    .unwrap()
}

fn row(entry: i16, reason: &str, requests: i16, tokens: (i64, i64, i64), amount: &str) -> Row {
    (entry, reason.to_owned(), requests, tokens.0, tokens.1, tokens.2, amount.to_owned())
}

#[tokio::test]
async fn after_the_grace_a_request_is_charged_from_its_executions() {
    let ledger = Ledger::start().await;
    execute(&ledger, [execution(1, 1, billed), execution(2, 2, billed)]).await;
    ledger.append([charge(1, |_| ())]).await;
    assert_eq!(passes(&ledger, 0..=59).await, 0);
    assert_eq!(passes(&ledger, 60..=60).await, 1, "and only the one that no gateway charged");
    assert_eq!(rows(&ledger, 2).await, [row(0, "execution", 1, (40, 32, 4), "0.000014")]);
    let labels: (String, String, String, DateTime<Utc>) = sqlx::query_as(
        "SELECT key_id, project, requested_model, received_at FROM ledger_charges WHERE reason = 'execution'",
    )
    .fetch_one(&ledger.pool)
    .await
    .unwrap();
    let key = KeyId::from_u128(6).to_string();
    assert_eq!(labels, (key, "search".to_owned(), "smollm2-135m-instruct".to_owned(), at(0)));
    assert_eq!(passes(&ledger, 61..=400).await, 0, "once");
    assert_eq!(ledger.sum("requests", "ledger_usage_minutes").await, 2.into());
    assert_eq!(ledger.sum("amount", "ledger_usage_minutes").await.normalize().to_string(), "0.000028");
    let report = check(&ledger).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.counts.from_executions, report.counts.corrections), (1, 0));
}

#[tokio::test]
async fn the_grace_does_not_run_while_a_way_in_is_not_heard() {
    let ledger = Ledger::start().await;
    execute(&ledger, [execution(1, 1, billed)]).await;
    assert_eq!(passes(&ledger, 0..=50).await, 0);
    // The ledger was down for a minute: it starts anew.
    assert_eq!(passes(&ledger, 110..=160).await, 0);
    let partition = |heard_since: i64, heard_at: i64| {
        let (since, until) = (at(NOW + heard_since), at(NOW + heard_at));
        sqlx::query(
            "INSERT INTO ledger_hearing VALUES ('weir.usage.v1/0', $1, $2)
             ON CONFLICT (source) DO UPDATE SET heard_since = $1, heard_at = $2",
        )
        .bind(since)
        .bind(until)
        .execute(&ledger.pool)
    };
    // The consumer has been behind since then.
    partition(0, 120).await.unwrap();
    assert_eq!(passes(&ledger, 170..=400).await, 0);
    // It caught up a moment ago.
    partition(390, 405).await.unwrap();
    assert_eq!(passes(&ledger, 410..=420).await, 0);
    partition(390, 455).await.unwrap();
    assert_eq!(passes(&ledger, 430..=460).await, 1);
}

#[tokio::test]
async fn a_gateway_that_is_heard_is_not_gone_until_its_log_is_past_the_request() {
    let ledger = Ledger::start().await;
    execute(&ledger, [execution(1, 1, billed)]).await;
    ledger.append([charge(1, |data| data.received_at = at(30)), charge(2, |_| ())]).await;
    let heard = sqlx::query("UPDATE ledger_senders SET heard_at = $1 WHERE sender = $2");
    heard.bind(at(NOW + 200)).bind(GATEWAY.to_string()).execute(&ledger.pool).await.unwrap();
    execute(&ledger, [execution(2, 7, billed)]).await;
    assert_eq!(passes(&ledger, 0..=200).await, 0);
    // It received this one a minute after the execution's end: whatever it had of that is in the ledger.
    ledger.append([charge(3, |data| data.received_at = at(61))]).await;
    let heard = sqlx::query("UPDATE ledger_senders SET heard_at = $1 WHERE sender = $2");
    heard.bind(at(NOW + 210)).bind(GATEWAY.to_string()).execute(&ledger.pool).await.unwrap();
    assert_eq!(passes(&ledger, 210..=210).await, 1);
    assert_eq!(rows(&ledger, 7).await.len(), 1);
}

#[tokio::test]
async fn a_close_that_comes_later_is_a_correction() {
    let ledger = Ledger::start().await;
    let fewer = |data: &mut ExecutionData| {
        billed(data);
        (data.generated_tokens, data.recovered) = (3, true);
    };
    execute(&ledger, [execution(1, 1, billed), execution(2, 2, fewer), execution(3, 3, billed)]).await;
    assert_eq!(passes(&ledger, 0..=60).await, 3);
    let nothing = |data: &mut ChargeData| {
        (data.prompt_tokens, data.cached_prompt_tokens, data.generated_tokens) = (0, 0, 0);
        (data.recovered, data.finish_reason) = (true, FinishReason::Cancelled);
    };
    for _ in 0..3 {
        assert_eq!(ledger.append([charge(1, |_| ()), charge(2, |_| ()), charge(3, nothing)]).await, 3);
    }
    let nothing_changed =
        [row(0, "execution", 1, (40, 32, 4), "0.000014"), row(1, "correction", 0, (0, 0, 0), "0")];
    assert_eq!(rows(&ledger, 1).await, nothing_changed);
    let one_more =
        [row(0, "execution", 1, (40, 32, 3), "0.0000125"), row(1, "correction", 0, (0, 0, 1), "0.0000015")];
    assert_eq!(rows(&ledger, 2).await, one_more);
    // The gateway's count stands: this client got nothing.
    let all_back = [
        row(0, "execution", 1, (40, 32, 4), "0.000014"),
        row(1, "correction", -1, (-40, -32, -4), "-0.000014"),
        row(2, "correction", 1, (0, 0, 0), "0"),
    ];
    assert_eq!(rows(&ledger, 3).await, all_back);
    for (rolled, expected) in
        [("requests", 3), ("input_tokens", 80), ("input_cached_tokens", 64), ("output_tokens", 8)]
    {
        assert_eq!(ledger.sum(rolled, "ledger_usage_minutes").await, expected.into(), "{rolled}");
    }
    assert_eq!(ledger.sum("amount", "ledger_usage_minutes").await.normalize().to_string(), "0.000028");
    assert_eq!(ledger.sum("finished", "ledger_goodput_minutes").await, 3.into());
    assert_eq!(passes(&ledger, 61..=400).await, 0);
    let report = check(&ledger).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.counts.charges, report.recovered.total), (3, 2));
}

#[tokio::test]
async fn a_close_with_other_labels_moves_the_request() {
    let ledger = Ledger::start().await;
    // A worker that was not told who pays: its start is taken for the request's, and no key is known.
    execute(&ledger, [execution(1, 1, |data| data.started_at = at(60))]).await;
    assert_eq!(passes(&ledger, 0..=60).await, 1);
    ledger.append([charge(1, |data| data.generated_tokens = 5)]).await;
    let moved = [
        row(0, "execution", 1, (40, 32, 4), "0.000014"),
        row(1, "correction", -1, (-40, -32, -4), "-0.000014"),
        row(2, "correction", 1, (40, 32, 5), "0.0000155"),
    ];
    assert_eq!(rows(&ledger, 1).await, moved);
    let used: Vec<(String, i64, i64, String)> = sqlx::query_as(
        "SELECT key_id, requests, output_tokens, amount::text FROM ledger_usage_minutes ORDER BY bucket_start",
    )
    .fetch_all(&ledger.pool)
    .await
    .unwrap();
    let (known, unknown) = (KeyId::from_u128(6).to_string(), KeyId::from_u128(0).to_string());
    assert_eq!(
        (used[0].0.as_str(), used[0].1, used[0].2, used[0].3.as_str()),
        (known.as_str(), 1, 5, "0.0000155")
    );
    assert_eq!((used[1].0.as_str(), used[1].1, used[1].2), (unknown.as_str(), 0, 0));
    assert_eq!(ledger.sum("amount", "ledger_usage_minutes").await.normalize().to_string(), "0.0000155");
    let report = check(&ledger).await;
    // The tokens differ from the worker's, and neither side died: that is a finding; nothing else is.
    assert_eq!(
        (report.differences.total, report.duplicates.total, report.gaps.total),
        (1, 0, 0),
        "{report:?}"
    );
    assert_eq!(report.differences.listed[0].what, "charged and executed tokens differ");
}

#[tokio::test]
async fn a_correction_keeps_the_price_that_was_applied() {
    let ledger = Ledger::start().await;
    execute(&ledger, [execution(1, 1, billed)]).await;
    assert_eq!(passes(&ledger, 0..=60).await, 1);
    // Set now, in force since before the request: for what is charged from now on.
    ledger.price(VERSION, at(-10), "1000", "1000", "1000").await;
    ledger
        .append([charge(1, |data| (data.generated_tokens, data.recovered) = (3, true)), charge(2, |_| ())])
        .await;
    assert_eq!(rows(&ledger, 1).await[1], row(1, "correction", 0, (0, 0, -1), "-0.0000015"));
    assert_eq!(rows(&ledger, 2).await, [row(0, "request", 1, (40, 32, 4), "0.044")]);
}

#[tokio::test]
async fn without_a_price_an_orphan_waits() {
    let ledger = Ledger::start().await;
    let unpriced = |data: &mut ExecutionData| {
        billed(data);
        data.version = UNPRICED;
    };
    let failed = |data: &mut ExecutionData| {
        unpriced(data);
        (data.generated_tokens, data.outcome) = (0, ExecutionOutcome::Error);
    };
    execute(&ledger, [execution(1, 1, unpriced), execution(2, 2, failed)]).await;
    assert_eq!(passes(&ledger, 0..=100).await, 1, "an error before the first token needs none");
    assert_eq!(rows(&ledger, 2).await, [row(0, "execution", 1, (40, 32, 0), "0")]);
    let report = check(&ledger).await;
    assert_eq!(report.differences.total, 1, "{report:?}");
    assert_eq!(report.differences.listed[0].what, "executed but not charged");
    ledger.price(UNPRICED, at(-10), "1", "0", "2").await;
    assert_eq!(passes(&ledger, 110..=110).await, 1);
    assert_eq!(rows(&ledger, 1).await, [row(0, "execution", 1, (40, 32, 4), "0.000016")]);
    assert!(check(&ledger).await.is_clean());
}

#[tokio::test]
async fn an_execution_that_comes_late_is_charged_too_and_the_close_still_decides() {
    let ledger = Ledger::start().await;
    let first = |data: &mut ExecutionData| {
        billed(data);
        (data.generated_tokens, data.outcome, data.recovered) = (3, ExecutionOutcome::Error, true);
    };
    execute(&ledger, [execution(1, 1, first)]).await;
    assert_eq!(passes(&ledger, 0..=60).await, 1);
    execute(
        &ledger,
        [execution(2, 1, |data| {
            billed(data);
            (data.attempt, data.prompt_tokens, data.generated_tokens) = (2, 43, 2);
        })],
    )
    .await;
    assert_eq!(passes(&ledger, 70..=70).await, 1);
    assert_eq!(rows(&ledger, 1).await[1], row(1, "execution", 0, (0, 0, 2), "0.000003"));
    assert!(check(&ledger).await.is_clean(), "{:?}", check(&ledger).await);
    ledger.append([charge(1, |data| data.generated_tokens = 4)]).await;
    assert_eq!(rows(&ledger, 1).await[2], row(2, "correction", 0, (0, 0, -1), "-0.0000015"));
    assert_eq!(ledger.sum("output_tokens", "ledger_usage_minutes").await, 4.into());
    let report = check(&ledger).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.recovered.total, 1);
}

#[tokio::test]
async fn a_request_is_no_repeat_of_itself_but_of_its_key() {
    let ledger = Ledger::start().await;
    let keyed = |data: &mut ExecutionData| {
        billed(data);
        data.billing.as_mut().unwrap().idempotency_key_hash = Some("sha256:one".into());
    };
    execute(&ledger, [execution(1, 1, keyed), execution(2, 2, billed)]).await;
    assert_eq!(passes(&ledger, 0..=60).await, 2);
    let same_key = |data: &mut ChargeData| data.idempotency_key_hash = Some("sha256:one".into());
    ledger.append([charge(1, same_key), charge(2, same_key)]).await;
    // The first is charged; the second turns out to be a repeat, and what it was charged is given back.
    assert_eq!(ledger.sum("amount", "ledger_charges").await.normalize().to_string(), "0.000014");
    assert_eq!(rows(&ledger, 1).await.len(), 2);
    assert_eq!(rows(&ledger, 2).await.len(), 3);
    assert!(check(&ledger).await.is_clean(), "{:?}", check(&ledger).await);
}

#[tokio::test]
async fn a_correction_that_needs_a_price_is_kept_aside_until_there_is_one() {
    let ledger = Ledger::start().await;
    // It had done nothing when its worker died: nothing to price, and so nothing was asked for.
    let nothing = |data: &mut ExecutionData| {
        billed(data);
        data.version = UNPRICED;
        (data.cached_tokens, data.computed_tokens, data.generated_tokens) = (0, 0, 0);
        data.recovered = true;
    };
    execute(&ledger, [execution(1, 1, nothing)]).await;
    assert_eq!(passes(&ledger, 0..=60).await, 1);
    let unpriced = |data: &mut ChargeData| (data.version, data.decode_us) = (UNPRICED, 60_000);
    assert_eq!(ledger.append([charge(1, unpriced), charge(2, |_| ())]).await, 2);
    assert_eq!(ledger.count("ledger_dead_letters").await, 1);
    assert_eq!(rows(&ledger, 1).await.len(), 1);
    let number: i64 = sqlx::query_scalar("SELECT dead_letter FROM ledger_dead_letters")
        .fetch_one(&ledger.pool)
        .await
        .unwrap();
    let clock = crate::support::clock();
    let early = weir_ledger::dead_letters::replay(&ledger.pool, &clock, number, "anna").await;
    assert!(matches!(early, Err(weir_ledger::dead_letters::DecisionError::Refused { .. })), "{early:?}");
    ledger.price(UNPRICED, at(-10), "1", "0", "2").await;
    weir_ledger::dead_letters::replay(&ledger.pool, &clock, number, "anna").await.unwrap();
    assert_eq!(ledger.sum("amount", "ledger_usage_minutes").await.normalize().to_string(), "0.00003");
    execute(&ledger, [execution(2, 2, |_| ())]).await;
    let report = check(&ledger).await;
    assert!(report.is_clean(), "{report:?}");
}

#[tokio::test]
async fn a_month_late_is_the_right_price_and_the_right_minute() {
    let ledger = Ledger::start().await;
    let month = TimeDelta::days(30);
    ledger.price(VERSION, at(-3600) - month * 2, "1", "1", "1").await;
    ledger.price(VERSION, at(10) - month, "9", "9", "9").await;
    let late = |data: &mut ChargeData| {
        (data.received_at, data.finished_at) = (at(0) - month, at(1) - month);
    };
    assert_eq!(ledger.append([charge(2, |_| ())]).await, 0);
    assert_eq!(ledger.append([charge(1, late)]).await, 2);
    assert_eq!(rows(&ledger, 1).await, [row(0, "request", 1, (40, 32, 4), "0.000044")]);
    let minutes: Vec<(DateTime<Utc>, i64)> =
        sqlx::query_as("SELECT bucket_start, requests FROM ledger_usage_minutes ORDER BY 1")
            .fetch_all(&ledger.pool)
            .await
            .unwrap();
    assert_eq!(minutes, [(at(-20) - month, 1), (at(-20), 1)]);
    assert_eq!(ledger.append([charge_of(GATEWAY, 1, 1, late)]).await, 2, "resent, it changes nothing");
    assert_eq!(ledger.count("ledger_charges").await, 2);
}
