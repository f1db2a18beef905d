//! What the record log tells of the minutes before this start, for the limits.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde::de::IgnoredAny;
use weir_metering::{LogError, RecordLog};
use weir_schemas::ids::{KeyId, TenantId};
use weir_schemas::records::{FinishReason, USAGE_TOPIC};

use crate::admission::{HISTORY_WINDOW, History, PastUse, Used};

/// Read at most, newest first: some 50,000 records, which take a second or two.
const MAX_BYTES: u64 = 64 << 20;
/// Records and bytes read at once.
const BATCH: (usize, usize) = (1_000, 1 << 20);

/// As much of a charge record as is needed.
#[derive(Deserialize)]
struct Past {
    data: PastData,
}

#[derive(Deserialize)]
struct PastData {
    tenant: TenantId,
    key: KeyId,
    requested_model: Arc<str>,
    finish_reason: FinishReason,
    prompt_tokens: u64,
    generated_tokens: u64,
    received_at: DateTime<Utc>,
    #[serde(default)]
    replicas: Vec<IgnoredAny>,
    #[serde(default)]
    recovered: bool,
}

/// What was used until `now`, the start of the process, as far back as is looked and the log goes. Blocks on the disk.
pub(crate) fn read(log: &RecordLog, now: DateTime<Utc>) -> Result<History, LogError> {
    log.sync()?;
    let mut cursor = log.recent(MAX_BYTES);
    let mut history = None;
    loop {
        let batch = cursor.read(BATCH.0, BATCH.1)?;
        if batch.is_empty() {
            return Ok(history.unwrap_or_default());
        }
        for record in batch.iter().filter(|record| record.topic == USAGE_TOPIC) {
            // One that cannot be read is the ledger's to complain of.
            let Ok(Past { data }) = serde_json::from_slice(&record.payload) else { continue };
            let at = offset(now, data.received_at);
            let history = history.get_or_insert_with(|| {
                History::new(at.unwrap_or_default(), at.is_some() && record.sequence == 1)
            });
            if let (Some(at), true) = (at, data.counted()) {
                let (prompt_tokens, generated_tokens) = (data.prompt_tokens, data.generated_tokens);
                let used = Used { prompt_tokens, generated_tokens };
                history.note(data.tenant, data.key, PastUse { at, model: data.requested_model, used });
            }
        }
    }
}

/// Where a time lies in the window; nothing if before it. What a clock that was set back shows as the future is now.
fn offset(now: DateTime<Utc>, at: DateTime<Utc>) -> Option<Duration> {
    let ago = (now - at).to_std().unwrap_or_default();
    HISTORY_WINDOW.checked_sub(ago)
}

impl PastData {
    /// Whether admission counted it: settled, not abandoned. What a crash left open was admitted.
    fn counted(&self) -> bool {
        self.recovered
            || (!self.replicas.is_empty() && self.finish_reason.is_chargeable(self.generated_tokens))
    }
}
