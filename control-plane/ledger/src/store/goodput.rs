//! Goodput: of all requests that were asked for, how many met both targets, per minute, tenant, model and class.

use std::collections::BTreeMap;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use sqlx::PgConnection;
use weir_schemas::records::{ChargeData, RejectionData};

use super::{count, text, wire_name};

/// Rows are written in this order, so that two senders never wait for each other in a circle.
type Key = (String, DateTime<Utc>, String, String);

#[derive(Debug, Default)]
struct Counts {
    finished: i64,
    rejected: i64,
    ttft_met: i64,
    itl_met: i64,
    both_met: i64,
    output_tokens: i64,
    output_tokens_both_met: i64,
}

/// A batch's contribution.
#[derive(Debug, Default)]
pub(crate) struct Goodput(BTreeMap<Key, Counts>);

impl Goodput {
    pub(crate) fn finished(&mut self, data: &ChargeData) {
        let key = key(data.tenant.to_string(), data.received_at, &data.requested_model, wire_name(data.tier));
        let counts = self.0.entry(key).or_default();
        // One token has no gap, which is no gap over the target.
        let (ttft, itl) = (data.slo.ttft_met == Some(true), data.slo.itl_met != Some(false));
        let output_tokens = count(data.generated_tokens);
        counts.finished += 1;
        counts.ttft_met += i64::from(ttft);
        counts.itl_met += i64::from(data.slo.itl_met == Some(true));
        counts.both_met += i64::from(ttft && itl);
        counts.output_tokens += output_tokens;
        counts.output_tokens_both_met += if ttft && itl { output_tokens } else { 0 };
    }

    pub(crate) fn rejected(&mut self, data: &RejectionData) {
        let key = key(data.tenant.to_string(), data.minute, &data.requested_model, String::new());
        self.0.entry(key).or_default().rejected += count(data.count);
    }

    pub(crate) async fn write(self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        if self.0.is_empty() {
            return Ok(());
        }
        let column = |value: fn(&Counts) -> i64| -> Vec<i64> { self.0.values().map(value).collect() };
        sqlx::query(
            "INSERT INTO ledger_goodput_minutes AS m (tenant_id, bucket_start, requested_model, tier, finished,
                 rejected, ttft_met, itl_met, both_met, output_tokens, output_tokens_both_met)
             SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::bigint[], $6::bigint[],
                 $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[])
             ON CONFLICT (tenant_id, bucket_start, requested_model, tier) DO UPDATE SET
                 finished = m.finished + excluded.finished,
                 rejected = m.rejected + excluded.rejected,
                 ttft_met = m.ttft_met + excluded.ttft_met,
                 itl_met = m.itl_met + excluded.itl_met,
                 both_met = m.both_met + excluded.both_met,
                 output_tokens = m.output_tokens + excluded.output_tokens,
                 output_tokens_both_met = m.output_tokens_both_met + excluded.output_tokens_both_met",
        )
        .bind(self.0.keys().map(|key| key.0.clone()).collect::<Vec<_>>())
        .bind(self.0.keys().map(|key| key.1).collect::<Vec<_>>())
        .bind(self.0.keys().map(|key| key.2.clone()).collect::<Vec<_>>())
        .bind(self.0.keys().map(|key| key.3.clone()).collect::<Vec<_>>())
        .bind(column(|counts| counts.finished))
        .bind(column(|counts| counts.rejected))
        .bind(column(|counts| counts.ttft_met))
        .bind(column(|counts| counts.itl_met))
        .bind(column(|counts| counts.both_met))
        .bind(column(|counts| counts.output_tokens))
        .bind(column(|counts| counts.output_tokens_both_met))
        .execute(connection)
        .await?;
        Ok(())
    }
}

fn key(tenant: String, time: DateTime<Utc>, requested_model: &str, tier: String) -> Key {
    // Truncation fails only outside the years 1677 to 2262; the time itself is then as good a bucket.
    let minute = time.duration_trunc(TimeDelta::minutes(1)).unwrap_or(time);
    (tenant, minute, text(requested_model), tier)
}
