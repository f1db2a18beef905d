//! A message as a record of its sender, or as a stranger's.

use std::sync::Arc;

use rdkafka::Message;
use rdkafka::message::BorrowedMessage;
use weir_schemas::ids::{GatewayId, WorkerId};
use weir_schemas::kafka::Origin;

use crate::incoming::{Received, Stranger};
use crate::store::offsets::Partition;

/// What a message holds. There is no third: whatever it is, it is taken.
#[derive(Debug)]
pub(super) enum Content {
    Record(Received),
    Stranger(Stranger),
}

/// Reads a message of this partition.
pub(super) fn read(partition: Partition, message: &BorrowedMessage<'_>) -> Content {
    let key = message.key().unwrap_or_default().to_vec();
    // A tombstone has no payload; as a record it is an empty one, which is malformed.
    let payload = message.payload().unwrap_or_default().to_vec();
    let topic = partition.topic.to_owned();
    match place(message) {
        Ok((sender, sequence)) => Content::Record(Received::numbered(sender, sequence, topic, key, payload)),
        Err(detail) => {
            let place = format!("kafka:{partition}").into();
            Content::Stranger(Stranger { place, offset: message.offset(), topic, key, payload, detail })
        }
    }
}

fn place(message: &BorrowedMessage<'_>) -> Result<(Arc<str>, i64), String> {
    let Origin { sender_id, sequence } =
        Origin::from_headers(message.headers()).map_err(|error| error.to_string())?;
    if sender_id.parse::<GatewayId>().is_err() && sender_id.parse::<WorkerId>().is_err() {
        return Err("its sender is neither a gateway nor a worker".to_owned());
    }
    let sequence = i64::try_from(sequence).map_err(|_| "its sequence is beyond 2^63 - 1".to_owned())?;
    Ok((sender_id.into(), sequence))
}
