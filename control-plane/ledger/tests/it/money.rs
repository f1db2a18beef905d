//! Amounts to the last digit, and which price they come from.

use chrono::TimeDelta;
use weir_ledger::{Priced, price_unpriced};
use weir_schemas::records::FinishReason;

use crate::support::{Ledger, UNPRICED, VERSION, at, charge, clock};

#[tokio::test]
async fn amounts_are_price_times_tokens_to_the_last_digit() {
    let ledger = Ledger::start().await;
    // Digits that neither a float nor a fixed scale holds.
    ledger
        .price(UNPRICED, at(-10), "0.123456789012345678", "0.000000000000000001", "98765432109876.54321")
        .await;
    let tokens = |prompt: u64, cached: u64, generated: u64| {
        move |data: &mut weir_schemas::records::ChargeData| {
            data.version = UNPRICED;
            (data.prompt_tokens, data.cached_prompt_tokens, data.generated_tokens) =
                (prompt, cached, generated);
        }
    };
    ledger
        .append([
            charge(1, tokens(1_000_003, 999_983, 7)),
            charge(2, tokens(1 << 40, 0, 1 << 40)),
            charge(3, tokens(1, 1, 0)),
        ])
        .await;
    let rows: Vec<(String, String, String, String)> = sqlx::query_as(
        "SELECT prompt_amount::text, cached_prompt_amount::text, generated_amount::text, amount::text
         FROM ledger_charges ORDER BY request_id",
    )
    .fetch_all(&ledger.pool)
    .await
    .unwrap();
    let expected = [
        // 20 × 0.123456789012345678 / 1e6; 999983 × 1e-18 / 1e6; 7 × 98765432109876.54321 / 1e6.
        (
            "0.00000246913578024691356",
            "0.000000000000000000999983",
            "691358024.76913580247",
            "691358024.769138271605780247913543",
        ),
        ("0", "0.000000000000000000000001", "0", "0.000000000000000000000001"),
    ];
    let actual: Vec<_> =
        rows.iter().map(|r| (r.0.as_str(), r.1.as_str(), r.2.as_str(), r.3.as_str())).collect();
    assert_eq!([actual[0], actual[2]], expected);
    assert_eq!(actual[1].0, scaled(1 << 40, 123_456_789_012_345_678, 18));
    assert_eq!(actual[1].2, scaled(1 << 40, 9_876_543_210_987_654_321, 5));
}

/// tokens × units × 10^-(scale + 6), written out without trailing zeros.
fn scaled(tokens: u128, units: u128, scale: usize) -> String {
    let digits = format!("{:0>width$}", tokens * units, width = scale + 7);
    let (whole, fraction) = digits.split_at(digits.len() - scale - 6);
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() { whole.to_owned() } else { format!("{whole}.{fraction}") }
}

#[tokio::test]
async fn the_price_in_force_when_the_request_came_is_the_one() {
    let ledger = Ledger::start().await;
    // From the second on, twice the price; a later event for the same moment wins; a future price does not matter.
    ledger.price(VERSION, at(10), "1000", "1000", "1000").await;
    ledger.price(VERSION, at(10), "1", "0.25", "3").await;
    ledger.price(VERSION, at(20), "7", "7", "7").await;
    let received =
        |seconds: i64| move |data: &mut weir_schemas::records::ChargeData| data.received_at = at(seconds);
    let just_before =
        |data: &mut weir_schemas::records::ChargeData| data.received_at = at(10) - TimeDelta::microseconds(1);
    ledger
        .append([
            charge(1, received(0)),
            charge(2, just_before),
            charge(3, received(10)),
            charge(4, received(19)),
        ])
        .await;
    let amounts: Vec<String> =
        sqlx::query_scalar("SELECT amount::text FROM ledger_charges ORDER BY request_id")
            .fetch_all(&ledger.pool)
            .await
            .unwrap();
    // (8 × 0.5 + 32 × 0.125 + 4 × 1.5) / 1e6 = 0.000014, and twice that.
    assert_eq!(amounts, ["0.000014", "0.000014", "0.000028", "0.000028"]);
}

#[tokio::test]
async fn without_a_price_a_record_waits_and_is_never_charged_as_zero() {
    let ledger = Ledger::start().await;
    let unpriced = |data: &mut weir_schemas::records::ChargeData| data.version = UNPRICED;
    assert_eq!(ledger.append([charge(1, unpriced), charge(2, unpriced), charge(3, |_| ())]).await, 3);
    assert_eq!(ledger.count("ledger_charges").await, 1);
    assert_eq!(ledger.count("ledger_unpriced").await, 2);
    assert_eq!(
        ledger.sum("output_tokens", "ledger_usage_minutes").await,
        12.into(),
        "it is usage all the same"
    );
    let nothing = price_unpriced(&ledger.pool, &clock()).await.unwrap();
    assert_eq!(nothing, Priced { charged: 0, waiting: 2 });

    // A price that is in force only later covers neither; one that was in force covers both.
    ledger.price(UNPRICED, at(100), "9", "9", "9").await;
    assert_eq!(price_unpriced(&ledger.pool, &clock()).await.unwrap().charged, 0);
    ledger.price(UNPRICED, at(-100), "1", "0", "2").await;
    let priced = price_unpriced(&ledger.pool, &clock()).await.unwrap();
    assert_eq!(priced, Priced { charged: 2, waiting: 0 });
    assert_eq!(price_unpriced(&ledger.pool, &clock()).await.unwrap(), Priced::default());
    // Resending changes nothing.
    assert_eq!(ledger.append([charge(1, unpriced), charge(2, unpriced)]).await, 3);

    assert_eq!(ledger.count("ledger_charges").await, 3);
    assert_eq!(ledger.sum("requests", "ledger_usage_minutes").await, 3.into());
    assert_eq!(ledger.sum("output_tokens", "ledger_usage_minutes").await, 12.into());
    // 2 × (8 × 1 + 4 × 2) / 1e6 + 0.000014.
    assert_eq!(ledger.sum("amount", "ledger_usage_minutes").await.to_string(), "0.000046");
    assert_eq!(ledger.sum("amount", "ledger_charges").await.to_string(), "0.000046");
}

#[tokio::test]
async fn a_price_set_later_is_found_by_the_running_ledger_when_told() {
    let ledger = Ledger::start().await;
    ledger.append([charge(1, |data| data.version = UNPRICED)]).await;
    ledger.price(UNPRICED, at(-100), "1", "0", "2").await;
    ledger.running.price_now();
    crate::support::within_a_minute(async || ledger.count("ledger_charges").await == 1).await;
}

#[tokio::test]
async fn how_a_request_ended_decides_whether_it_is_charged() {
    let ledger = Ledger::start().await;
    let ended = |reason: FinishReason, generated: u64| {
        move |data: &mut weir_schemas::records::ChargeData| {
            (data.finish_reason, data.generated_tokens) = (reason, generated);
        }
    };
    let never_ran = |data: &mut weir_schemas::records::ChargeData| {
        data.finish_reason = FinishReason::Cancelled;
        (data.prompt_tokens, data.cached_prompt_tokens, data.generated_tokens) = (0, 0, 0);
        // Nothing to price: not even a price is needed.
        data.version = UNPRICED;
    };
    let records = [
        charge(1, ended(FinishReason::Rejected, 0)),
        charge(2, ended(FinishReason::ModelWarming, 0)),
        charge(3, ended(FinishReason::Error, 0)),
        charge(4, never_ran),
        charge(5, ended(FinishReason::Error, 4)),
        charge(6, ended(FinishReason::ReplicaLost, 4)),
        charge(7, ended(FinishReason::Cancelled, 0)),
    ];
    ledger.append(records).await;
    let amounts: Vec<(bool, String)> =
        sqlx::query_as("SELECT chargeable, amount::text FROM ledger_charges ORDER BY request_id")
            .fetch_all(&ledger.pool)
            .await
            .unwrap();
    let amounts: Vec<(bool, &str)> =
        amounts.iter().map(|(chargeable, amount)| (*chargeable, amount.as_str())).collect();
    let expected = [
        (false, "0"),
        (false, "0"),
        (false, "0"),
        (true, "0"),
        (true, "0.000014"),
        (true, "0.000014"),
        (true, "0.000008"),
    ];
    assert_eq!(amounts, expected);
    assert_eq!(ledger.count("ledger_unpriced").await, 0);
}

#[tokio::test]
async fn one_idempotency_key_is_charged_once_a_day() {
    let ledger = Ledger::start().await;
    let keyed = |seconds: i64| {
        move |data: &mut weir_schemas::records::ChargeData| {
            data.idempotency_key_hash = Some("sha256:one".into());
            data.received_at = at(seconds);
        }
    };
    let failed = |data: &mut weir_schemas::records::ChargeData| {
        keyed(0)(data);
        (data.finish_reason, data.generated_tokens) = (FinishReason::Error, 0);
    };
    ledger.append([charge(1, failed), charge(2, keyed(1)), charge(3, keyed(2))]).await;
    ledger
        .append([
            charge(4, keyed(3)),
            charge(5, |data| data.idempotency_key_hash = Some("sha256:two".into())),
        ])
        .await;
    ledger.append([charge(6, keyed(2 * 86_400))]).await;
    let expected = [
        ("request", false),
        ("request", true),
        ("idempotent_repeat", false),
        ("idempotent_repeat", false),
        ("request", true),
        ("request", true),
    ];
    assert_eq!(
        reasons_and_whether_paid(&ledger).await,
        expected.map(|(reason, paid)| (reason.to_owned(), paid))
    );
}

/// A gateway that was killed, or a client that stayed away, left the key with a part of an answer or with none.
#[tokio::test]
async fn a_part_of_an_answer_pays_for_the_whole_and_none_for_nothing() {
    let ledger = Ledger::start().await;
    let run = |hash: &'static str, recovered: bool, prompt: u64, generated: u64| {
        move |data: &mut weir_schemas::records::ChargeData| {
            data.idempotency_key_hash = Some(hash.into());
            data.recovered = recovered;
            data.finish_reason = if recovered { FinishReason::Cancelled } else { FinishReason::Stop };
            (data.prompt_tokens, data.cached_prompt_tokens, data.generated_tokens) = (prompt, 0, generated);
        }
    };
    ledger
        .append([
            charge(1, run("sha256:part", true, 10, 2)),
            charge(2, run("sha256:none", true, 0, 0)),
            charge(3, run("sha256:part", false, 10, 20)),
            charge(4, run("sha256:none", false, 10, 20)),
        ])
        .await;
    // In a batch of its own, and in the one before.
    ledger.append([charge(5, run("sha256:later", true, 0, 0))]).await;
    ledger
        .append([charge(6, run("sha256:later", false, 10, 20)), charge(7, run("sha256:part", false, 10, 20))])
        .await;
    let expected = [
        ("request", true),
        ("request", false),
        ("idempotent_repeat", false),
        ("request", true),
        ("request", false),
        ("request", true),
        ("idempotent_repeat", false),
    ];
    assert_eq!(
        reasons_and_whether_paid(&ledger).await,
        expected.map(|(reason, paid)| (reason.to_owned(), paid))
    );
}

/// Of every charge, by request.
async fn reasons_and_whether_paid(ledger: &Ledger) -> Vec<(String, bool)> {
    sqlx::query_as("SELECT reason, amount > 0 FROM ledger_charges ORDER BY request_id")
        .fetch_all(&ledger.pool)
        .await
        .unwrap()
}
