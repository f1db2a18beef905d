//! Owns every live sequence at a stable index, so that the step loop looks nothing up by id.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use crate::sequence::{Sequence, SequenceId};

/// Index of a live sequence; reused after it is retired.
pub(super) type Slot = usize;

pub(super) struct Slots<C> {
    sequences: Vec<Option<Sequence<C>>>,
    free: Vec<Slot>,
    by_id: HashMap<SequenceId, Slot>,
}

impl<C> Default for Slots<C> {
    fn default() -> Self {
        Self { sequences: Vec::new(), free: Vec::new(), by_id: HashMap::new() }
    }
}

impl<C> Slots<C> {
    pub(super) fn insert(&mut self, sequence: Sequence<C>) -> Slot {
        let id = sequence.id;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.sequences.push(None);
            self.sequences.len() - 1
        });
        self.sequences[slot] = Some(sequence);
        self.by_id.insert(id, slot);
        slot
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Sequence<C> {
        let sequence = self.sequences[slot].take().expect("a slot in use");
        self.by_id.remove(&sequence.id);
        self.free.push(slot);
        sequence
    }

    pub(super) fn find(&self, id: SequenceId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence<C>> {
        self.sequences.iter().flatten()
    }
}

impl<C> Index<Slot> for Slots<C> {
    type Output = Sequence<C>;

    #[inline]
    fn index(&self, slot: Slot) -> &Sequence<C> {
        self.sequences[slot].as_ref().expect("a slot in use")
    }
}

impl<C> IndexMut<Slot> for Slots<C> {
    #[inline]
    fn index_mut(&mut self, slot: Slot) -> &mut Sequence<C> {
        self.sequences[slot].as_mut().expect("a slot in use")
    }
}
