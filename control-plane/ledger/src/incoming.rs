//! A record as it arrives: read and checked before anything touches the database. What cannot be read is not an
//! error of the batch but a dead letter.

use std::sync::Arc;

use chrono::{DateTime, Datelike, Utc};
use serde::de::DeserializeOwned;
use weir_schemas::records::{
    ChargeData, CloudEvent, DAMAGED_TOPIC, EXECUTIONS_TOPIC, ExecutionData, REJECTIONS_TOPIC, RecordData,
    RejectionData, USAGE_TOPIC,
};
use weir_schemas::rpc::ledger::Record;

/// A record with its place in its sender's sequence.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) sender: Arc<str>,
    pub(crate) sequence: i64,
    pub(crate) topic: String,
    pub(crate) key: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) content: Content,
}

/// A message of a record topic that names no sender and no place in a sequence: nobody's watermark waits for it, so
/// it is known by where it lies.
#[derive(Debug, Clone)]
pub(crate) struct Stranger {
    /// The partition: `kafka:<topic>/<partition>`, which no sender's id looks like.
    pub(crate) place: Arc<str>,
    pub(crate) offset: i64,
    pub(crate) topic: String,
    pub(crate) key: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) detail: String,
}

/// What a record is.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Charge(Box<CloudEvent<ChargeData>>),
    Execution(Box<CloudEvent<ExecutionData>>),
    Rejection(Box<CloudEvent<RejectionData>>),
    Dead(DeadReason, String),
}

/// Why a record is kept aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeadReason {
    /// Not the JSON that its topic holds, or values that contradict each other.
    Malformed,
    /// An event type that this ledger does not know, perhaps of a newer release.
    UnknownType,
    /// A topic that this ledger does not know.
    UnknownTopic,
    /// It names no sender, or no place in its sequence.
    NoSender,
    /// Its sender's disk lost it.
    DamagedAtSender,
    /// Its sender used the number before for another record.
    SequenceConflict,
    /// The same event came before under another number.
    DuplicateEvent,
    /// Postgres cannot store its values.
    Refused,
}

impl DeadReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::UnknownType => "unknown_type",
            Self::UnknownTopic => "unknown_topic",
            Self::NoSender => "no_sender",
            Self::DamagedAtSender => "damaged_at_sender",
            Self::SequenceConflict => "sequence_conflict",
            Self::DuplicateEvent => "duplicate_event",
            Self::Refused => "refused",
        }
    }
}

impl Received {
    /// Reads a record of `sender`; `None` where the sequence number itself is not one.
    pub(crate) fn read(sender: &Arc<str>, record: Record) -> Option<Self> {
        let Record { sequence, topic, key, payload } = record;
        let sequence = i64::try_from(sequence).ok().filter(|&sequence| sequence > 0)?;
        Some(Self::numbered(Arc::clone(sender), sequence, topic, key.into_bytes(), payload))
    }

    /// Reads the record that `sender` gave this number.
    pub(crate) fn numbered(
        sender: Arc<str>,
        sequence: i64,
        topic: String,
        key: Vec<u8>,
        payload: Vec<u8>,
    ) -> Self {
        let content = content(&sender, sequence, &topic, &payload)
            .unwrap_or_else(|(reason, detail)| Content::Dead(reason, detail));
        Self { sender, sequence, topic, key, payload, content }
    }

    /// The source event's id, by which it is recognised whatever its number.
    pub(crate) fn event_id(&self) -> Option<&str> {
        match &self.content {
            Content::Charge(event) => Some(&event.id),
            Content::Execution(event) => Some(&event.id),
            Content::Rejection(event) => Some(&event.id),
            Content::Dead(..) => None,
        }
    }

    /// The same record, kept aside.
    pub(crate) fn into_dead(mut self, reason: DeadReason, detail: impl Into<String>) -> Self {
        self.content = Content::Dead(reason, detail.into());
        self
    }
}

type Dead = (DeadReason, String);

/// Ids are ours: a typed id, perhaps with a number behind it.
const MAX_ID_BYTES: usize = 128;

fn content(sender: &str, sequence: i64, topic: &str, payload: &[u8]) -> Result<Content, Dead> {
    match topic {
        USAGE_TOPIC => {
            let event = event::<ChargeData>(sender, payload)?;
            check_charge(&event, sequence).map_err(malformed)?;
            Ok(Content::Charge(Box::new(event)))
        }
        EXECUTIONS_TOPIC => {
            let event = event::<ExecutionData>(sender, payload)?;
            check_execution(&event.data, sequence).map_err(malformed)?;
            Ok(Content::Execution(Box::new(event)))
        }
        REJECTIONS_TOPIC => {
            let event = event::<RejectionData>(sender, payload)?;
            let data = &event.data;
            check_sequence(data.sequence, sequence).map_err(malformed)?;
            check_counts(&[("count", data.count)]).map_err(malformed)?;
            check_time("minute", data.minute).map_err(malformed)?;
            Ok(Content::Rejection(Box::new(event)))
        }
        DAMAGED_TOPIC => Err((DeadReason::DamagedAtSender, "the sender's disk damaged or lost it".into())),
        _ => Err((DeadReason::UnknownTopic, "no such topic".into())),
    }
}

fn malformed(detail: String) -> Dead {
    (DeadReason::Malformed, detail)
}

fn event<T: RecordData + DeserializeOwned>(sender: &str, payload: &[u8]) -> Result<CloudEvent<T>, Dead> {
    #[derive(serde::Deserialize)]
    struct Kind {
        specversion: String,
        #[serde(rename = "type")]
        event_type: String,
        source: String,
        id: String,
    }
    // Serde's messages name fields and positions; values stay in the stored bytes.
    let kind: Kind = serde_json::from_slice(payload).map_err(|error| malformed(describe(&error)))?;
    if kind.specversion != "1.0" || kind.event_type != T::EVENT_TYPE {
        return Err((DeadReason::UnknownType, format!("not a CloudEvents 1.0 {}", T::EVENT_TYPE)));
    }
    if kind.id.is_empty()
        || kind.id.len() > MAX_ID_BYTES
        || !kind.id.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(malformed("its id is not a short word".into()));
    }
    if kind.source != sender {
        return Err(malformed("its source is not its sender".into()));
    }
    serde_json::from_slice(payload).map_err(|error| malformed(describe(&error)))
}

fn describe(error: &serde_json::Error) -> String {
    format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column())
}

fn check_charge(event: &CloudEvent<ChargeData>, sequence: i64) -> Result<(), String> {
    let data = &event.data;
    event.id.parse::<weir_schemas::ids::RequestId>().map_err(|_| "its id is not a request id".to_owned())?;
    check_sequence(data.sequence, sequence)?;
    check_counts(&[
        ("prompt_tokens", data.prompt_tokens),
        ("cached_prompt_tokens", data.cached_prompt_tokens),
        ("generated_tokens", data.generated_tokens),
        ("reasoning_tokens", data.reasoning_tokens),
    ])?;
    check_time("received_at", data.received_at)?;
    check_time("finished_at", data.finished_at)?;
    if data.cached_prompt_tokens > data.prompt_tokens {
        return Err("more cached than prompt tokens".into());
    }
    if data.reasoning_tokens > data.generated_tokens {
        return Err("more reasoning than generated tokens".into());
    }
    Ok(())
}

fn check_execution(data: &ExecutionData, sequence: i64) -> Result<(), String> {
    check_sequence(data.sequence, sequence)?;
    check_counts(&[
        ("prompt_tokens", data.prompt_tokens),
        ("cached_tokens", data.cached_tokens),
        ("computed_tokens", data.computed_tokens),
        ("generated_tokens", data.generated_tokens),
        ("device_us", data.device_us),
    ])?;
    check_time("started_at", data.started_at)?;
    check_time("finished_at", data.finished_at)
}

fn check_sequence(inside: u64, outside: i64) -> Result<(), String> {
    match i64::try_from(inside) == Ok(outside) {
        true => Ok(()),
        false => Err("the sequence inside is not the one it was sent with".into()),
    }
}

/// Sums of a trillion records of this size still fit Postgres' bigint.
const MAX_COUNT: u64 = 1 << 40;

fn check_counts(counts: &[(&str, u64)]) -> Result<(), String> {
    match counts.iter().find(|(_, count)| *count > MAX_COUNT) {
        Some((name, _)) => Err(format!("{name} is beyond any possible count")),
        None => Ok(()),
    }
}

fn check_time(name: &str, time: DateTime<Utc>) -> Result<(), String> {
    match (2000..3000).contains(&time.year()) {
        true => Ok(()),
        false => Err(format!("{name} is not a time of this millennium")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHARGE: &str = include_str!("../../../schemas/samples/weir.request.finished.v1.json");
    const EXECUTION: &str = include_str!("../../../schemas/samples/weir.execution.finished.v1.json");
    const REJECTION: &str = include_str!("../../../schemas/samples/weir.requests.rejected.v1.json");
    const GATEWAY: &str = "gtw_00000000000000000000000006";
    const WORKER: &str = "wrk_00000000000000000000000004";

    fn read(sender: &str, topic: &str, sequence: u64, payload: &str) -> Content {
        let record = Record { sequence, topic: topic.into(), key: "k".into(), payload: payload.into() };
        Received::read(&sender.into(), record).unwrap().content
    }

    #[test]
    fn the_samples_are_read_as_what_they_are() {
        assert!(matches!(read(GATEWAY, USAGE_TOPIC, 1, CHARGE), Content::Charge(_)));
        assert!(matches!(read(WORKER, EXECUTIONS_TOPIC, 1, EXECUTION), Content::Execution(_)));
        assert!(matches!(read(GATEWAY, REJECTIONS_TOPIC, 2, REJECTION), Content::Rejection(_)));
        let extended = CHARGE.replace("\"n\": 1", "\"n\": 1, \"a_field_of_tomorrow\": [1]");
        assert_ne!(extended, CHARGE);
        assert!(matches!(read(GATEWAY, USAGE_TOPIC, 1, &extended), Content::Charge(_)));
    }

    #[test]
    fn what_cannot_be_charged_is_kept_aside_with_its_reason() {
        let check = |topic: &str, payload: &str, expected: DeadReason| match read(GATEWAY, topic, 1, payload)
        {
            Content::Dead(reason, detail) => assert_eq!(reason, expected, "{detail}"),
            other => panic!("{other:?}"),
        };
        check(USAGE_TOPIC, "", DeadReason::Malformed);
        check(USAGE_TOPIC, "{\"specversion\":", DeadReason::Malformed);
        check(
            USAGE_TOPIC,
            &CHARGE.replace("\"generated_tokens\": 4", "\"generated_tokens\": -4"),
            DeadReason::Malformed,
        );
        check(
            USAGE_TOPIC,
            &CHARGE.replace("\"prompt_tokens\": 40", "\"prompt_tokens\": 31"),
            DeadReason::Malformed,
        );
        check(
            USAGE_TOPIC,
            &CHARGE.replace("\"prompt_tokens\": 40", "\"prompt_tokens\": 18446744073709551615"),
            DeadReason::Malformed,
        );
        check(
            USAGE_TOPIC,
            &CHARGE.replace("2026-09-21T14:13:20Z", "9999-09-21T14:13:20Z"),
            DeadReason::Malformed,
        );
        check(USAGE_TOPIC, &CHARGE.replace("\"sequence\": 1", "\"sequence\": 2"), DeadReason::Malformed);
        check(USAGE_TOPIC, &CHARGE.replace(GATEWAY, "gtw_00000000000000000000000007"), DeadReason::Malformed);
        check(USAGE_TOPIC, &CHARGE.replace("finished.v1", "finished.v2"), DeadReason::UnknownType);
        check(EXECUTIONS_TOPIC, CHARGE, DeadReason::UnknownType);
        check("weir.other.v1", CHARGE, DeadReason::UnknownTopic);
        check(DAMAGED_TOPIC, "{}", DeadReason::DamagedAtSender);
    }

    #[test]
    fn numbers_that_postgres_cannot_hold_are_no_sequence() {
        for sequence in [0, u64::MAX] {
            let record = Record { sequence, ..Record::default() };
            assert!(Received::read(&GATEWAY.into(), record).is_none());
        }
    }
}
