//! The test of the test: someone with the database's password removes the triggers and alters one thing, of every
//! kind there is, and verification must see it.

use weir_schemas::ids::{RequestId, TenantId, VersionId};

use crate::support::{Ledger, TENANT, UNPRICED, VERSION, at};
use crate::verify::{check, consistent};

/// Tables whose rows triggers guard.
const GUARDED: &[&str] = &["ledger_sequences", "ledger_charges", "ledger_executions"];

/// As someone with the database's password and bad intent.
pub(crate) async fn by_hand(ledger: &Ledger, sql: &str) {
    let triggers = |state: &str| {
        let alter = |table: &&str| format!("ALTER TABLE {table} {state} TRIGGER USER;");
        GUARDED.iter().map(alter).collect::<String>()
    };
    let script = format!("{} {sql}; {}", triggers("DISABLE"), triggers("ENABLE"));
    sqlx::raw_sql(&script).execute(&ledger.pool).await.unwrap();
}

const TABLES: &[&str] = &[
    "ledger_senders",
    "ledger_sequences",
    "ledger_charges",
    "ledger_unpriced",
    "ledger_executions",
    "ledger_usage_minutes",
    "ledger_goodput_minutes",
];

/// A consistent ledger, and what it was.
struct Untouched(Ledger);

impl Untouched {
    async fn new() -> Self {
        let ledger = consistent().await;
        // A later price for an earlier moment leaves what is charged as it is.
        ledger.price(VERSION, at(-1800), "7", "7", "7").await;
        for table in TABLES {
            by_hand(&ledger, &format!("CREATE TABLE kept_{table} AS TABLE {table}")).await;
        }
        Self(ledger)
    }

    /// Alters it, sees that this is found, and restores it.
    async fn finds(&self, sql: &str) {
        let Self(ledger) = self;
        by_hand(ledger, sql).await;
        let report = check(ledger).await;
        assert!(!report.is_clean(), "{sql}: {report:?}");
        let restore =
            |table: &&str| format!("DELETE FROM {table}; INSERT INTO {table} SELECT * FROM kept_{table};");
        by_hand(ledger, &TABLES.iter().map(restore).collect::<String>()).await;
        let report = check(ledger).await;
        assert!(report.is_clean(), "restored after {sql}: {report:?}");
    }
}

/// Columns of a charge that say who pays for what, and how much.
const CHARGE_COLUMNS: &[(&str, &str)] = &[
    ("tenant_id", "'ten_0000000000000000000000000z'"),
    ("key_id", "'key_0000000000000000000000000z'"),
    ("project", "'other'"),
    ("client_request_id", "'other'"),
    ("idempotency_key_hash", "'other'"),
    ("requested_model", "'other'"),
    ("version_id", "'ver_0000000000000000000000000z'"),
    ("tier", "'batch'"),
    ("finish_reason", "'length'"),
    ("prompt_tokens", "prompt_tokens + 1"),
    ("cached_prompt_tokens", "0"),
    ("generated_tokens", "generated_tokens - 1"),
    ("reasoning_tokens", "1"),
    ("received_at", "received_at + interval '1 second'"),
    ("finished_at", "finished_at + interval '1 second'"),
    ("recovered", "true"),
    ("requests", "0"),
    ("price_position", "(SELECT max(position) FROM price_versions)"),
    ("currency", "'EUR'"),
    ("prompt_per_million", "prompt_per_million * 2"),
    ("cached_prompt_per_million", "cached_prompt_per_million * 2"),
    ("generated_per_million", "generated_per_million * 2"),
    ("prompt_amount", "prompt_amount + 1, amount = amount + 1"),
    ("cached_prompt_amount", "cached_prompt_amount + 1, amount = amount + 1"),
    ("generated_amount", "generated_amount + 1, amount = amount + 1"),
    ("sender", "'gtw_0000000000000000000000000z'"),
    ("sequence", "99"),
    ("reason", "'idempotent_repeat'"),
    ("reason", "'execution'"),
    ("reason", "'correction'"),
    ("chargeable", "false, amount = 0, prompt_amount = 0, cached_prompt_amount = 0, generated_amount = 0"),
    (
        "chargeable",
        "false, amount = 0, prompt_amount = 0, cached_prompt_amount = 0, generated_amount = 0, currency = '',
         price_position = NULL, prompt_per_million = NULL, cached_prompt_per_million = NULL, generated_per_million = NULL",
    ),
    ("record", "replace(record::text, '\"generated_tokens\":4', '\"generated_tokens\":3')::json"),
];

#[tokio::test]
async fn each_column_of_a_charge() {
    let request = RequestId::from_u128(2).to_string();
    let ledger = Untouched::new().await;
    for (column, value) in CHARGE_COLUMNS {
        ledger
            .finds(&format!("UPDATE ledger_charges SET {column} = {value} WHERE request_id = '{request}'"))
            .await;
    }
}

#[tokio::test]
async fn a_charge_removed_or_doubled() {
    let ledger = Untouched::new().await;
    let first = RequestId::from_u128(1).to_string();
    ledger.finds(&format!("DELETE FROM ledger_charges WHERE request_id = '{first}'")).await;
    // With everything that tells of it, but for the execution.
    ledger.finds(&format!(
        "DELETE FROM ledger_charges WHERE request_id = '{first}'; DELETE FROM ledger_sequences WHERE event_id = '{first}'"
    ))
    .await;
    let doubled = |change: &str| {
        format!(
            "INSERT INTO ledger_charges SELECT (c).* FROM (SELECT json_populate_record(c, '{change}') AS c
             FROM ledger_charges c WHERE request_id = '{first}') d"
        )
    };
    ledger.finds(&doubled(r#"{"request_id": "req_other"}"#)).await;
    ledger.finds(&doubled(r#"{"request_id": "req_other", "sequence": 77}"#)).await;
    ledger.finds(&doubled(r#"{"entry": 1}"#)).await;
    ledger.finds(&doubled(r#"{"entry": 1, "reason": "correction"}"#)).await;
    ledger.finds(&doubled(r#"{"entry": 1, "reason": "correction", "requests": 0}"#)).await;
    ledger.finds(&doubled(r#"{"request_id": "req_other", "reason": "execution"}"#)).await;
}

#[tokio::test]
async fn executions_and_what_waits_for_a_price() {
    let ledger = Untouched::new().await;
    let request = RequestId::from_u128(1).to_string();
    let other = TenantId::from_u128(99);
    let another = VersionId::from_u128(99);
    for change in [
        "prompt_tokens = prompt_tokens + 1",
        "cached_tokens = 0",
        "computed_tokens = 1",
        "generated_tokens = 1",
        "device_us = 0",
        "outcome = 'length'",
        "attempt = 2",
        "recovered = true",
        "sequence = 98",
        "worker_id = 'wrk_other'",
        "instance_id = 'ins_other'",
        "started_at = started_at - interval '1 second'",
        "finished_at = finished_at - interval '1 second'",
        "request_id = 'req_other'",
        "record = replace(record::text, '\"generated_tokens\":4', '\"generated_tokens\":3')::json",
        // Column and record alike: the charge tells.
        "generated_tokens = 3, record = replace(record::text, '\"generated_tokens\":4', '\"generated_tokens\":3')::json",
        &format!("tenant_id = '{other}', record = replace(record::text, '{TENANT}', '{other}')::json"),
        &format!("version_id = '{another}', record = replace(record::text, '{VERSION}', '{another}')::json"),
    ] {
        ledger.finds(&format!("UPDATE ledger_executions SET {change} WHERE request_id = '{request}'")).await;
    }
    ledger.finds(&format!("DELETE FROM ledger_executions WHERE request_id = '{request}'")).await;
    ledger.finds("DELETE FROM ledger_unpriced").await;
    ledger.finds(&format!("UPDATE ledger_unpriced SET tenant_id = '{other}'")).await;
    ledger
        .finds(&format!(
            "UPDATE ledger_unpriced SET version_id = '{VERSION}' WHERE version_id = '{UNPRICED}'"
        ))
        .await;
    ledger.finds("UPDATE ledger_unpriced SET received_at = received_at + interval '1 hour'").await;
}

#[tokio::test]
async fn roll_ups_sequences_and_watermarks() {
    let ledger = Untouched::new().await;
    for column in ["requests", "input_tokens", "input_cached_tokens", "output_tokens", "amount"] {
        ledger
            .finds(&format!("UPDATE ledger_usage_minutes SET {column} = {column} + 1 WHERE currency <> ''"))
            .await;
    }
    for label in ["tenant_id", "key_id", "project", "requested_model", "version_id", "tier"] {
        ledger
            .finds(&format!("UPDATE ledger_usage_minutes SET {label} = 'other' WHERE currency <> ''"))
            .await;
    }
    ledger.finds("UPDATE ledger_usage_minutes SET currency = 'EUR' WHERE currency <> ''").await;
    ledger.finds("UPDATE ledger_usage_minutes SET bucket_start = bucket_start - interval '1 minute'").await;
    ledger.finds("DELETE FROM ledger_usage_minutes").await;
    for column in
        ["finished", "rejected", "ttft_met", "itl_met", "both_met", "output_tokens", "output_tokens_both_met"]
    {
        ledger.finds(&format!("UPDATE ledger_goodput_minutes SET {column} = {column} + 1")).await;
    }
    ledger.finds("DELETE FROM ledger_sequences WHERE sequence = 2").await;
    ledger.finds("DELETE FROM ledger_sequences WHERE sequence = 5").await;
    ledger
        .finds("UPDATE ledger_sequences SET event_id = 'other' WHERE sender LIKE 'gtw%' AND sequence = 2")
        .await;
    ledger.finds("UPDATE ledger_sequences SET sequence = 9 WHERE sequence = 5").await;
    ledger.finds("UPDATE ledger_senders SET watermark = watermark + 1").await;
    ledger.finds("UPDATE ledger_senders SET watermark = watermark - 1").await;
}
