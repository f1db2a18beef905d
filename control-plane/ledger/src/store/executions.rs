//! Execution records: the workers' count, kept to be compared.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use weir_schemas::records::{CloudEvent, ExecutionData};

use super::{count, wire_name};

/// A record on its way to the table.
#[derive(Debug)]
pub(crate) struct Execution<'a> {
    pub(crate) sender: &'a str,
    pub(crate) sequence: i64,
    pub(crate) event: &'a CloudEvent<ExecutionData>,
    pub(crate) record: &'a str,
}

pub(crate) async fn insert(
    connection: &mut PgConnection,
    executions: &[Execution<'_>],
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    if executions.is_empty() {
        return Ok(());
    }
    let column = |value: fn(&ExecutionData) -> i64| -> Vec<i64> {
        executions.iter().map(|execution| value(&execution.event.data)).collect()
    };
    let words = |value: fn(&ExecutionData) -> String| -> Vec<String> {
        executions.iter().map(|execution| value(&execution.event.data)).collect()
    };
    let times = |value: fn(&ExecutionData) -> DateTime<Utc>| -> Vec<DateTime<Utc>> {
        executions.iter().map(|execution| value(&execution.event.data)).collect()
    };
    sqlx::query(
        "INSERT INTO ledger_executions (sender, stored_at, request_id, attempt, sequence, tenant_id, version_id,
             worker_id, instance_id, prompt_tokens, cached_tokens, computed_tokens, generated_tokens, device_us,
             outcome, started_at, finished_at, recovered, record)
         SELECT sender, $1, request_id, attempt, sequence, tenant_id, version_id, worker_id, instance_id, prompt_tokens,
             cached_tokens, computed_tokens, generated_tokens, device_us, outcome, started_at, finished_at, recovered,
             record::json
         FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[],
             $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::text[],
             $16::timestamptz[], $17::timestamptz[], $18::boolean[], $19::text[])
         AS t(sender, request_id, attempt, sequence, tenant_id, version_id, worker_id, instance_id, prompt_tokens,
             cached_tokens, computed_tokens, generated_tokens, device_us, outcome, started_at, finished_at, recovered,
             record)",
    )
    .bind(now)
    .bind(executions.iter().map(|execution| execution.sender).collect::<Vec<_>>())
    .bind(words(|data| data.request.to_string()))
    .bind(column(|data| i64::from(data.attempt)))
    .bind(executions.iter().map(|execution| execution.sequence).collect::<Vec<_>>())
    .bind(words(|data| data.tenant.to_string()))
    .bind(words(|data| data.version.to_string()))
    .bind(words(|data| data.worker.to_string()))
    .bind(words(|data| data.instance.to_string()))
    .bind(column(|data| count(data.prompt_tokens)))
    .bind(column(|data| count(data.cached_tokens)))
    .bind(column(|data| count(data.computed_tokens)))
    .bind(column(|data| count(data.generated_tokens)))
    .bind(column(|data| count(data.device_us)))
    .bind(words(|data| wire_name(data.outcome)))
    .bind(times(|data| data.started_at))
    .bind(times(|data| data.finished_at))
    .bind(executions.iter().map(|execution| execution.event.data.recovered).collect::<Vec<_>>())
    .bind(executions.iter().map(|execution| execution.record).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}
