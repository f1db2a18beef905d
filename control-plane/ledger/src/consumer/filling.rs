//! The batch that is being filled while the one before is committed.

use std::collections::BTreeMap;

use super::message::Content;
use crate::batch::Batch;
use crate::store::offsets::{Move, Partition, Position};

/// Enough that a transaction's fixed costs do not count; it takes Postgres some tenths of a second.
const MAX_RECORDS: usize = 2_000;
/// Two batches are held at a time, and parsed records are a few times their payload.
const MAX_BYTES: usize = 4 << 20;

/// Messages read and not yet handed to a transaction, with the offsets they move.
#[derive(Debug, Default)]
pub(super) struct Filling {
    batch: Batch,
    moves: BTreeMap<Partition, Move>,
    payload_bytes: usize,
}

impl Filling {
    pub(super) fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.batch.records.len() + self.batch.strangers.len() >= MAX_RECORDS
            || self.payload_bytes >= MAX_BYTES
    }

    /// Adds the message at `offset`, which follows `from`.
    pub(super) fn push(&mut self, partition: Partition, from: Position, offset: i64, content: Content) {
        let to_offset = offset + 1;
        self.moves.entry(partition).and_modify(|step| step.to_offset = to_offset).or_insert(Move {
            partition,
            from,
            to_offset,
        });
        match content {
            Content::Record(record) => {
                self.payload_bytes += record.payload.len();
                self.batch.records.push(record);
            }
            Content::Stranger(stranger) => {
                self.payload_bytes += stranger.payload.len();
                self.batch.strangers.push(stranger);
            }
        }
    }

    /// The batch, leaving an empty one.
    pub(super) fn take(&mut self) -> Batch {
        let Self { mut batch, moves, payload_bytes: _ } = std::mem::take(self);
        batch.moves = moves.into_values().collect();
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incoming::Stranger;

    fn message(payload: &str) -> Content {
        let (topic, key) = ("weir.usage.v1".to_owned(), Vec::new());
        let payload = payload.as_bytes().to_vec();
        Content::Stranger(Stranger {
            place: "kafka:x/0".into(),
            offset: 0,
            topic,
            key,
            payload,
            detail: String::new(),
        })
    }

    #[test]
    fn a_batch_moves_each_partition_once_from_where_it_began_and_is_bounded() {
        let [one, two] = [1, 2].map(|number| Partition::of("weir.usage.v1", number).unwrap());
        let at = |next_offset| Position { incarnation: "life".into(), next_offset };
        let mut filling = Filling::default();
        assert!(filling.is_empty());
        filling.push(one, at(5), 5, message(""));
        filling.push(two, at(0), 3, message(""));
        filling.push(one, at(6), 6, message(""));
        let batch = filling.take();
        assert!(filling.is_empty());
        assert_eq!(batch.strangers.len(), 3);
        let expected = [
            Move { partition: one, from: at(5), to_offset: 7 },
            Move { partition: two, from: at(0), to_offset: 4 },
        ];
        assert_eq!(batch.moves, expected);

        for offset in 0.. {
            if filling.is_full() {
                break;
            }
            filling.push(one, at(offset), offset, message(""));
        }
        assert_eq!(filling.take().strangers.len(), MAX_RECORDS);
        filling.push(one, at(0), 0, message(&"x".repeat(MAX_BYTES)));
        assert!(filling.is_full());
    }
}
