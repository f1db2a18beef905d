//! The partitions that are ours, and how far each has been read.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::group::Assigned;
use crate::store::offsets::{Partition, Position};

/// What is known of each assigned partition.
#[derive(Debug, Default)]
pub(super) struct Partitions(BTreeMap<Partition, Held>);

#[derive(Debug)]
struct Held {
    /// Of this assignment; see [`Assigned`].
    number: u64,
    /// `None` until its position was looked up.
    reading: Option<Reading>,
}

#[derive(Debug)]
struct Reading {
    next: Position,
    /// Whether the next message may come from further on. The position has just been seen to lie within the
    /// partition, so what is missing between was never a record (a transaction's marker, say).
    may_jump: bool,
    /// Since when records have been there and none of them came.
    stuck_since: Option<Instant>,
}

/// A partition whose position is to be looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) partition: Partition,
    number: u64,
    /// It is being read; otherwise its position is unknown.
    pub(super) is_read: bool,
    /// Records were there and did not come; nobody hears such a partition.
    pub(super) is_stuck: bool,
}

/// What a message at some offset is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The next one, after this position.
    Next(Position),
    /// Of a partition that is not being read; it will come again.
    Skip,
    /// Not the one expected: the partition was cut short, made anew, or lost its beginning.
    Astray,
}

impl Partitions {
    /// Takes over what the group decided.
    pub(super) fn regroup(&mut self, assigned: &Assigned) {
        self.0.retain(|partition, held| assigned.get(partition) == Some(&held.number));
        for (&partition, &number) in assigned {
            self.0.entry(partition).or_insert(Held { number, reading: None });
        }
    }

    /// Every partition, to be looked after.
    pub(super) fn asked(&self) -> Vec<Asked> {
        let asked = |(&partition, held): (&Partition, &Held)| {
            let Held { number, reading } = held;
            let is_stuck = reading.as_ref().is_some_and(|reading| reading.stuck_since.is_some());
            Asked { partition, number: *number, is_read: reading.is_some(), is_stuck }
        };
        self.0.iter().map(asked).collect()
    }

    /// Whether the position of any is to be looked up.
    pub(super) fn any_unread(&self) -> bool {
        self.0.values().any(|held| held.reading.is_none())
    }

    /// Forgets where one is, or all of them.
    pub(super) fn forget(&mut self, only: Option<Partition>) {
        for (partition, held) in &mut self.0 {
            if only.is_none_or(|only| only == *partition) {
                held.reading = None;
            }
        }
    }

    /// Begins to read at a position that was looked up just now; returns whether the partition still waits for it.
    pub(super) fn begin(&mut self, asked: Asked, next: Position) -> bool {
        match self.0.get_mut(&asked.partition) {
            Some(held) if held.number == asked.number && held.reading.is_none() => {
                held.reading = Some(Reading { next, may_jump: true, stuck_since: None });
                true
            }
            Some(_) | None => false,
        }
    }

    /// Takes note of what was found of a partition that is read: its committed position, and whether records lie behind
    /// it. Returns since when they lie there without coming.
    pub(super) fn found(&mut self, asked: Asked, position: &Position, is_behind: bool) -> Option<Instant> {
        let held = self.0.get_mut(&asked.partition).filter(|held| held.number == asked.number)?;
        let reading = held.reading.as_mut()?;
        // Beyond the position means: they came, and are being charged.
        if is_behind && reading.next == *position {
            Some(*reading.stuck_since.get_or_insert_with(Instant::now))
        } else {
            reading.stuck_since = None;
            None
        }
    }

    /// Places a message, and expects the one behind it.
    pub(super) fn step(&mut self, partition: Partition, offset: i64) -> Step {
        let Some(reading) = self.0.get_mut(&partition).and_then(|held| held.reading.as_mut()) else {
            return Step::Skip;
        };
        let expected = reading.next.next_offset;
        if offset < expected || (offset > expected && !reading.may_jump) {
            return Step::Astray;
        }
        let from = reading.next.clone();
        reading.next.next_offset = offset + 1;
        reading.may_jump = false;
        reading.stuck_since = None;
        Step::Next(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(next_offset: i64) -> Position {
        Position { incarnation: "life".into(), next_offset }
    }

    fn asked(partition: Partition, number: u64) -> Asked {
        Asked { partition, number, is_read: false, is_stuck: false }
    }

    #[test]
    fn messages_are_taken_in_order_from_a_position_that_was_looked_up() {
        let one = Partition::of("weir.usage.v1", 1).unwrap();
        let mut partitions = Partitions::default();
        assert_eq!(partitions.step(one, 0), Step::Skip);
        partitions.regroup(&Assigned::from([(one, 0)]));
        assert!(partitions.any_unread());
        assert_eq!(partitions.step(one, 0), Step::Skip);
        assert_eq!(partitions.asked(), [asked(one, 0)]);
        assert!(partitions.begin(asked(one, 0), at(5)));
        assert!(!partitions.any_unread());
        // Nothing but markers may lie between the position and the first record.
        assert_eq!(partitions.step(one, 7), Step::Next(at(5)));
        assert_eq!(partitions.step(one, 8), Step::Next(at(8)));
        assert_eq!(partitions.step(one, 8), Step::Astray);
        assert_eq!(partitions.step(one, 11), Step::Astray);
        assert_eq!(partitions.step(one, 0), Step::Astray);
        assert_eq!(partitions.step(one, 9), Step::Next(at(9)));
    }

    #[test]
    fn records_that_lie_there_and_do_not_come_are_noticed() {
        let one = Partition::of("weir.usage.v1", 1).unwrap();
        let mut partitions = Partitions::default();
        partitions.regroup(&Assigned::from([(one, 0)]));
        assert!(partitions.begin(asked(one, 0), at(5)));
        let read = partitions.asked()[0];
        assert_eq!(partitions.found(read, &at(5), false), None);
        let since = partitions.found(read, &at(5), true);
        assert!(since.is_some());
        assert_eq!(partitions.found(read, &at(5), true), since, "still the same");
        assert!(partitions.asked()[0].is_stuck);
        assert_eq!(partitions.step(one, 5), Step::Next(at(5)));
        assert!(!partitions.asked()[0].is_stuck, "one came");
        assert_eq!(partitions.found(read, &at(5), true), None, "it is being charged");
    }

    #[test]
    fn a_partition_that_left_or_came_anew_is_not_read_on() {
        let [one, two] = [1, 2].map(|number| Partition::of("weir.usage.v1", number).unwrap());
        let mut partitions = Partitions::default();
        partitions.regroup(&Assigned::from([(one, 0), (two, 0)]));
        assert!(partitions.begin(asked(one, 0), at(0)) && partitions.begin(asked(two, 0), at(0)));
        assert!(!partitions.begin(asked(one, 0), at(3)), "it is read already");
        partitions.regroup(&Assigned::from([(one, 0)]));
        assert_eq!(partitions.step(two, 0), Step::Skip);
        assert_eq!(partitions.step(one, 0), Step::Next(at(0)));
        partitions.regroup(&Assigned::from([(one, 1)]));
        assert_eq!(partitions.step(one, 1), Step::Skip);
        assert!(!partitions.begin(asked(one, 0), at(1)), "that was the assignment before");
        assert!(partitions.begin(asked(one, 1), at(1)));
        partitions.forget(Some(two));
        assert_eq!(partitions.step(one, 1), Step::Next(at(1)));
        partitions.forget(None);
        assert_eq!(partitions.step(one, 2), Step::Skip);
    }
}
