//! Sequences without a seat: by class, by tenant, by arrival.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap, VecDeque};

use super::fair_share::{AccountId, FairShare};
use super::slots::Slot;
use crate::sequence::{Class, SequenceId};

/// A waiting sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: SequenceId,
    pub(super) slot: Slot,
    /// Tokens to compute, as if nothing were cached.
    pub(super) num_tokens: u32,
}

#[derive(Debug, Default)]
struct ClassQueue {
    /// By arrival; tenants without a waiting sequence have no entry.
    tenants: HashMap<AccountId, VecDeque<Entry>>,
    len: u32,
}

#[derive(Debug, Default)]
pub(super) struct WaitingQueue {
    interactive: ClassQueue,
    batch: ClassQueue,
    num_tokens: u64,
}

impl WaitingQueue {
    pub(super) fn len(&self, class: Class) -> u32 {
        self.queue(class).len
    }

    pub(super) fn total_len(&self) -> u32 {
        self.interactive.len + self.batch.len
    }

    /// Tokens of all waiting sequences.
    pub(super) fn num_tokens(&self) -> u64 {
        self.num_tokens
    }

    /// Adds by arrival: a preempted sequence goes back before those that came after it.
    pub(super) fn insert(&mut self, class: Class, tenant: AccountId, entry: Entry) {
        self.num_tokens += u64::from(entry.num_tokens);
        let queue = self.queue_mut(class);
        queue.len += 1;
        let entries = queue.tenants.entry(tenant).or_default();
        let index = entries.partition_point(|waiting| waiting.id < entry.id);
        entries.insert(index, entry);
    }

    /// Takes one out; a sequence that does not wait is a bug of the caller.
    pub(super) fn remove(&mut self, class: Class, tenant: AccountId, id: SequenceId) {
        let queue = self.queue_mut(class);
        let entries = queue.tenants.get_mut(&tenant).expect("the tenant has a waiting sequence");
        let index = entries.binary_search_by_key(&id, |entry| entry.id).expect("the sequence waits");
        let entry = entries.remove(index).expect("found above");
        if entries.is_empty() {
            queue.tenants.remove(&tenant);
        }
        queue.len -= 1;
        self.num_tokens -= u64::from(entry.num_tokens);
    }

    /// Everyone of a class in the order in which they are offered a seat.
    pub(super) fn offers(&self, class: Class, fair: &FairShare) -> Offers {
        let tenants = self.queue(class).tenants.iter();
        let heads = tenants.filter_map(|(&tenant, entries)| {
            let entry = *entries.front()?;
            Some(Reverse(Offer { counter: fair.counter(tenant), entry, tenant, index: 0 }))
        });
        Offers { class, heap: heads.collect() }
    }

    fn queue(&self, class: Class) -> &ClassQueue {
        match class {
            Class::Interactive => &self.interactive,
            Class::Batch => &self.batch,
        }
    }

    fn queue_mut(&mut self, class: Class) -> &mut ClassQueue {
        match class {
            Class::Interactive => &mut self.interactive,
            Class::Batch => &mut self.batch,
        }
    }
}

/// The next sequence to be offered a seat, and where it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    counter: f64,
    pub(super) entry: Entry,
    pub(super) tenant: AccountId,
    index: usize,
}

/// Walks the waiting sequences of a class: the least served tenant's next, earliest first on a tie.
#[derive(Debug)]
pub(super) struct Offers {
    class: Class,
    heap: BinaryHeap<Reverse<Offer>>,
}

impl Offers {
    pub(super) fn next(&mut self) -> Option<Offer> {
        self.heap.pop().map(|offer| offer.0)
    }

    /// The offer was declined: its tenant's next one comes in its place.
    pub(super) fn skip(&mut self, offer: &Offer, waiting: &WaitingQueue) {
        self.push(offer.tenant, offer.index + 1, offer.counter, waiting);
    }

    /// The offer was taken and has left the queue, and its tenant was charged for it.
    pub(super) fn taken(&mut self, offer: &Offer, waiting: &WaitingQueue, fair: &FairShare) {
        self.push(offer.tenant, offer.index, fair.counter(offer.tenant), waiting);
    }

    fn push(&mut self, tenant: AccountId, index: usize, counter: f64, waiting: &WaitingQueue) {
        let entries = waiting.queue(self.class).tenants.get(&tenant);
        if let Some(&entry) = entries.and_then(|entries| entries.get(index)) {
            self.heap.push(Reverse(Offer { counter, entry, tenant, index }));
        }
    }
}

impl Ord for Offer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.counter.total_cmp(&other.counter).then(self.entry.id.cmp(&other.entry.id))
    }
}

impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Offer {}
