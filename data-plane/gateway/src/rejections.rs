//! Refused requests, counted per minute, tenant, model and reason, and written to the record log once a minute is
//! over: a flood of refusals costs a counter each, not a record each.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use parking_lot::Mutex;
use weir_metering::RecordLog;
use weir_schemas::ids::{GatewayId, RequestId, TenantId};
use weir_schemas::records::{REJECTIONS_TOPIC, RejectionData, RejectionReason, RejectionRecord};

/// Counters held at once; what would need another is counted under [`OTHER_MODEL`] of its tenant, which always fits.
/// Models are known aliases and tenants are authenticated, so only very large installations come near.
const MAX_COUNTERS: usize = 65_536;
const OTHER_MODEL: &str = "(other)";

type Key = (DateTime<Utc>, TenantId, String, RejectionReason);

/// The counters of the running minute and of those not yet written.
#[derive(Debug)]
pub(crate) struct Rejections {
    gateway: GatewayId,
    log: Arc<RecordLog>,
    counts: Mutex<BTreeMap<Key, u64>>,
}

impl Rejections {
    pub(crate) fn new(gateway: GatewayId, log: Arc<RecordLog>) -> Self {
        Self { gateway, log, counts: Mutex::default() }
    }

    pub(crate) fn count(&self, now: DateTime<Utc>, tenant: TenantId, model: &str, reason: RejectionReason) {
        let mut counts = self.counts.lock();
        let minute = minute_of(now);
        let mut key = (minute, tenant, model.to_owned(), reason);
        if counts.len() >= MAX_COUNTERS && !counts.contains_key(&key) {
            key.2 = OTHER_MODEL.to_owned();
        }
        *counts.entry(key).or_default() += 1;
    }

    /// Writes the minutes that are over; all of them where `everything`. What the log does not take stays counted.
    pub(crate) fn flush(&self, now: DateTime<Utc>, everything: bool) {
        let current = minute_of(now);
        let due: Vec<(Key, u64)> = {
            let mut counts = self.counts.lock();
            let later = if everything {
                BTreeMap::new()
            } else {
                let first = (current, TenantId::from_u128(0), String::new(), RejectionReason::RateLimit);
                counts.split_off(&first)
            };
            std::mem::replace(&mut *counts, later).into_iter().collect()
        };
        let mut failure = None;
        for ((minute, tenant, model, reason), count) in due {
            let written = self.log.append(REJECTIONS_TOPIC, &tenant.to_string(), |sequence| {
                let requested_model = model.clone();
                let data = RejectionData { minute, tenant, requested_model, reason, count, sequence };
                RejectionRecord::new(RequestId::new(now).to_string(), self.gateway.to_string(), now, data)
            });
            if let Err(error) = written {
                failure = Some(error);
                *self.counts.lock().entry((minute, tenant, model, reason)).or_default() += count;
            }
        }
        if let Some(error) = failure {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "counts of rejections could not be written; they are kept");
        }
    }
}

fn minute_of(now: DateTime<Utc>) -> DateTime<Utc> {
    now.duration_trunc(TimeDelta::minutes(1)).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use weir_metering::LogOptions;

    use super::*;

    #[test]
    fn one_record_for_each_minute_tenant_model_and_reason() {
        let directory = tempfile::tempdir().unwrap();
        let (log, _) = RecordLog::open(directory.path(), LogOptions::new("gtw_test")).unwrap();
        let rejections = Rejections::new(GatewayId::from_u128(1), log.clone());
        let at = |seconds: i64| DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap();
        let (one, two) = (TenantId::from_u128(1), TenantId::from_u128(2));
        (0..5).for_each(|second| rejections.count(at(second), one, "m", RejectionReason::RateLimit));
        rejections.count(at(1), one, "m", RejectionReason::Budget);
        rejections.count(at(1), two, "m", RejectionReason::RateLimit);
        rejections.count(at(61), two, "m", RejectionReason::RateLimit);
        rejections.flush(at(62), false);
        assert_eq!(log.stats().last_sequence, 3);
        rejections.flush(at(62), false);
        assert_eq!(log.stats().last_sequence, 3);
        rejections.flush(at(62), true);
        assert_eq!(log.stats().last_sequence, 4);
        log.sync().unwrap();
        let records = log.cursor().read(10, 1 << 20).unwrap();
        let counts: Vec<u64> = records
            .iter()
            .map(|record| serde_json::from_slice::<RejectionRecord>(&record.payload).unwrap().data.count)
            .collect();
        assert_eq!(counts.iter().sum::<u64>(), 8);
    }
}
