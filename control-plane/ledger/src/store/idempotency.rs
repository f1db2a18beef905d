//! One (tenant, Idempotency-Key) is charged once within a day, whatever number of requests it came with: for the first
//! that has tokens to charge. One that was cut off before any was not charged, and lets nothing off.

use std::collections::{BTreeSet, HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use weir_schemas::records::{ChargeData, CloudEvent};

use super::text;

/// How long a stored answer stands for its key; after that the key is new.
const KEY_LIFETIME: TimeDelta = TimeDelta::hours(24);

/// The request ids among `events` whose key was charged before them, by another request.
pub(crate) async fn repeats(
    connection: &mut PgConnection,
    events: &[&CloudEvent<ChargeData>],
) -> Result<HashSet<String>, sqlx::Error> {
    let keyed: Vec<(&CloudEvent<ChargeData>, (String, String))> = events
        .iter()
        .filter_map(|event| {
            let hash = text(event.data.idempotency_key_hash.as_deref()?);
            Some((*event, (event.data.tenant.to_string(), hash)))
        })
        .collect();
    if keyed.is_empty() {
        return Ok(HashSet::new());
    }
    let names: BTreeSet<&(String, String)> = keyed.iter().map(|(_, name)| name).collect();
    let tenants: Vec<&str> = names.iter().map(|(tenant, _)| tenant.as_str()).collect();
    let hashes: Vec<&str> = names.iter().map(|(_, hash)| hash.as_str()).collect();
    // In one order everywhere, so that two batches never wait for each other in a circle.
    sqlx::query(
        "SELECT pg_advisory_xact_lock(lock) FROM (
             SELECT DISTINCT hashtextextended(tenant || ' ' || hash, 0) AS lock
             FROM unnest($1::text[], $2::text[]) AS t(tenant, hash) ORDER BY 1) locks",
    )
    .bind(&tenants)
    .bind(&hashes)
    .execute(&mut *connection)
    .await?;
    // A request that was charged from executions before its record came is no repeat of itself.
    let asked: Vec<&str> = keyed.iter().map(|(event, _)| event.id.as_str()).collect();
    let charged: Vec<(String, String, DateTime<Utc>)> = sqlx::query_as(
        "SELECT tenant_id, idempotency_key_hash, received_at FROM ledger_charges
         JOIN unnest($1::text[], $2::text[]) AS t(tenant, hash)
             ON tenant_id = tenant AND idempotency_key_hash = hash AND chargeable AND entry = 0
                 AND (prompt_tokens, generated_tokens) <> (0, 0) AND request_id <> ALL($3)
         UNION ALL
         SELECT tenant_id, record -> 'data' ->> 'idempotency_key_hash', received_at FROM ledger_unpriced
         JOIN unnest($1::text[], $2::text[]) AS t(tenant, hash)
             ON tenant_id = tenant AND record -> 'data' ->> 'idempotency_key_hash' = hash",
    )
    .bind(&tenants)
    .bind(&hashes)
    .bind(&asked)
    .fetch_all(connection)
    .await?;
    let mut charged_at: HashMap<(String, String), Vec<DateTime<Utc>>> = HashMap::new();
    for (tenant, hash, received_at) in charged {
        charged_at.entry((tenant, hash)).or_default().push(received_at);
    }
    Ok(find_repeats(&keyed, charged_at))
}

fn find_repeats(
    keyed: &[(&CloudEvent<ChargeData>, (String, String))],
    mut charged_at: HashMap<(String, String), Vec<DateTime<Utc>>>,
) -> HashSet<String> {
    let mut repeats = HashSet::new();
    for (event, name) in keyed {
        let data = &event.data;
        let times = charged_at.entry(name.clone()).or_default();
        if times.iter().any(|time| (data.received_at - *time).abs() < KEY_LIFETIME) {
            repeats.insert(event.id.clone());
        } else if data.finish_reason.is_chargeable(data.generated_tokens)
            && (data.prompt_tokens, data.generated_tokens) != (0, 0)
        {
            times.push(data.received_at);
        }
    }
    repeats
}
