//! What the scheduler remembers of a plan until its output is collected.

use super::Scheduler;
use super::slots::Slot;
use crate::kv_cache::BlockTable;
use crate::sequence::{Commit, FinishReason, SequenceId, Sink};
use crate::step::{Sample, Seat, TokenMask};

/// A plan in flight.
#[derive(Debug)]
pub(super) struct Submission {
    /// In the order of the plan's.
    pub(super) rows: Vec<SubmittedRow>,
    /// Seats and pages of sequences that ended while this was the last submission to name them.
    pub(super) releases: Vec<(Seat, BlockTable)>,
    /// A batch sequence wanted to run in it and does not.
    pub(super) batch_lacks: bool,
    /// Rows of it wait for masks.
    pub(super) lacks_masks: bool,
}

#[derive(Debug)]
pub(super) struct SubmittedRow {
    /// `None` once the sequence is over: what the row gives is discarded.
    pub(super) slot: Option<Slot>,
    pub(super) sequence: SequenceId,
    pub(super) num_tokens: u32,
    pub(super) sample: Sample,
    pub(super) has_logprobs: bool,
}

impl Submission {
    pub(super) fn new(max_rows: usize) -> Self {
        Self {
            rows: Vec::with_capacity(max_rows),
            releases: Vec::new(),
            batch_lacks: false,
            lacks_masks: false,
        }
    }
}

impl<C: Commit> Scheduler<C> {
    /// Whether the latest submission still lacks its masks: nothing may follow it then.
    pub(crate) fn lacks_masks(&self) -> bool {
        self.in_flight.back().is_some_and(|submission| submission.lacks_masks)
    }

    /// The masks of the latest submission, in the order of its masked rows, as soon as they can be told: when every
    /// token before its own is committed.
    pub(crate) fn take_masks(&mut self) -> Option<Vec<Option<TokenMask>>> {
        if self.in_flight.len() != 1 || !self.lacks_masks() {
            return None;
        }
        let submission = self.in_flight.back_mut()?;
        submission.lacks_masks = false;
        let masked = submission.rows.iter().filter(|row| row.sample == Sample::Masked);
        let slots = masked.map(|row| row.slot).collect::<Vec<_>>();
        Some(slots.into_iter().map(|slot| self.slots[slot?].commit.mask()).collect())
    }

    /// Discards what the submissions in flight give for a sequence that is over, and lets the last of them hold its seat and
    /// its pages.
    pub(super) fn discard_rows(&mut self, slot: Slot, seat: Seat, block_table: BlockTable) {
        let mut last = None;
        for submission in &mut self.in_flight {
            if let Some(row) = submission.rows.iter_mut().find(|row| row.slot == Some(slot)) {
                row.slot = None;
                last = Some(&mut submission.releases);
            }
        }
        match last {
            Some(releases) => releases.push((seat, block_table)),
            None => self.release(&[(seat, block_table)]),
        }
    }

    /// Gives seats and pages back.
    pub(super) fn release(&mut self, releases: &[(Seat, BlockTable)]) {
        for (seat, block_table) in releases {
            self.free_seats.push(*seat);
            self.kv.release(block_table);
        }
        self.admission_worthwhile |= !releases.is_empty();
    }

    /// Pages that come back when what is in flight is collected: of those who ended, and of those who give way.
    pub(super) fn num_returning(&self) -> u32 {
        let ended = self.in_flight.iter().flat_map(|submission| &submission.releases);
        let ended = ended.map(|(_, block_table)| block_table);
        let running = self.running.iter().map(|&slot| &self.slots[slot]);
        let yielding = running.filter(|sequence| sequence.is_yielding).map(|sequence| &sequence.block_table);
        let blocks = ended.chain(yielding).flat_map(BlockTable::blocks);
        let alone = blocks.filter(|block| self.kv.ref_count(**block) == 1).count();
        u32::try_from(alone).expect("at most as many as pages")
    }

    /// Ends every sequence of the latest submission, which the executor did not take.
    pub(crate) fn fail_latest(&mut self, sink: &mut impl Sink<C>) {
        let Some(submission) = self.in_flight.pop_back() else { return };
        for slot in submission.rows.iter().filter_map(|row| row.slot) {
            self.slots[slot].in_flight -= 1;
            self.retire(slot, FinishReason::Error, sink);
        }
        self.release(&submission.releases);
    }

    /// Ends every sequence of every submission in flight; what they wrote cannot be relied on.
    pub(crate) fn fail_in_flight(&mut self, sink: &mut impl Sink<C>) {
        let submissions = std::mem::take(&mut self.in_flight);
        for submission in &submissions {
            for row in &submission.rows {
                if let Some(slot) = row.slot.filter(|_| self.slots.find(row.sequence) == row.slot) {
                    self.slots[slot].in_flight = 0;
                    self.retire(slot, FinishReason::Error, sink);
                }
            }
        }
        for submission in submissions {
            self.release(&submission.releases);
        }
    }
}
