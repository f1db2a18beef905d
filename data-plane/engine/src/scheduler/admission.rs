//! Who gets a seat.
//!
//! A sequence is admitted only if it can be held: it gets pages for all it knows, and its first chunk runs in
//! the same step. One that does not fit is passed over, but only so often; after that nobody who comes after it
//! in the order is admitted before it, and as everyone running ends, it fits at last.

use super::budget::PrefillBudget;
use super::slots::Slot;
use super::waiting::{Offer, Offers};
use super::{Class, Scheduler};
use crate::sequence::{Commit, Sequence};

/// Sequences that a step tries beyond the first that does not fit: bounds the time that a long queue of
/// unfitting sequences takes from each step.
const PASSED_OVER_MAX: usize = 32;
/// Steps after which a failed admission is tried again although no page was given back: who has held a seat
/// long enough may have to yield it by now.
pub(super) const RETRY_STEPS: u64 = 16;

enum Answer {
    Seated,
    NoSeat,
    NoPages,
    NoBudget,
}

/// What one step's admissions have met so far.
#[derive(Debug, Default)]
pub(super) struct AdmissionRound {
    /// Sequences that do not fit, earliest in the order first.
    blocked: Vec<Slot>,
    /// Seats or the step's budget ran out before everybody was asked.
    cut_short: bool,
}

impl AdmissionRound {
    /// True if asking again in the next step is worthwhile.
    pub(super) fn was_cut_short(&self) -> bool {
        self.cut_short
    }
}

impl<C: Commit> Scheduler<C> {
    pub(super) fn reopen_admission_now_and_then(&mut self) {
        if self.step.is_multiple_of(RETRY_STEPS) && self.waiting.total_len() > 0 {
            self.admission_worthwhile = true;
        }
    }

    /// Admits up to `count_max` waiting sequences of a class in order, as far as seats, pages and the step's
    /// budget allow, each with its first chunk. Returns how many.
    pub(super) fn admit(
        &mut self,
        class: Class,
        count_max: u32,
        budget: &mut PrefillBudget,
        round: &mut AdmissionRound,
    ) -> u32 {
        if self.waiting.len(class) == 0 || !self.admission_worthwhile || round.cut_short {
            return 0;
        }
        let seats_are_taken = self.free_seats.is_empty();
        if budget.is_spent() || (seats_are_taken && !self.someone_may_yield_to(class)) {
            round.cut_short = true;
            return 0;
        }
        let mut count = 0;
        let mut offers = self.waiting.offers(class, &self.fair);
        while count < count_max && !self.someone_waited_enough(round) {
            let Some(offer) = offers.next() else { break };
            let slot = offer.entry.slot;
            if round.blocked.contains(&slot) {
                offers.skip(&offer, &self.waiting);
                continue;
            }
            match self.offer_seat(slot, round.blocked.is_empty(), budget) {
                Answer::Seated => {
                    self.seat(&offer, &mut offers);
                    count += 1;
                    for &passed_over in &round.blocked {
                        self.slots[passed_over].bypassed += 1;
                    }
                }
                Answer::NoPages => {
                    round.blocked.push(slot);
                    offers.skip(&offer, &self.waiting);
                }
                Answer::NoSeat | Answer::NoBudget => {
                    round.cut_short = true;
                    break;
                }
            }
        }
        count
    }

    /// True if nobody may be admitted past those who do not fit any more.
    fn someone_waited_enough(&self, round: &AdmissionRound) -> bool {
        let bypass_max = self.config.bypass_max;
        round.blocked.len() > PASSED_OVER_MAX
            || round.blocked.iter().any(|&slot| self.slots[slot].bypassed >= bypass_max)
    }

    /// Gives a waiting sequence its pages and its first chunk, or says what is missing. Only the first in the
    /// order may take from those who run.
    fn offer_seat(&mut self, slot: Slot, is_first: bool, budget: &mut PrefillBudget) -> Answer {
        let sequence = &self.slots[slot];
        let found = self.kv.match_prefix(sequence.cacheable_chain(self.block_tokens));
        let chunk = budget.take_chunk(found.blocks * self.block_tokens, sequence.len());
        if chunk == 0 {
            return Answer::NoBudget;
        }
        let num_blocks = self.blocks_to_admit(sequence);
        let wanted = num_blocks - found.blocks + found.unreferenced + self.growth_reserve();
        let missing_blocks = wanted.saturating_sub(self.kv.num_available());
        let misses_seat = self.free_seats.is_empty();
        if (misses_seat || missing_blocks > 0)
            && !(is_first && self.reclaim(slot, misses_seat, missing_blocks))
        {
            budget.give_back(chunk);
            return if misses_seat { Answer::NoSeat } else { Answer::NoPages };
        }
        let Some(seat) = self.free_seats.pop() else {
            budget.give_back(chunk);
            return Answer::NoSeat;
        };
        let sequence = &mut self.slots[slot];
        let chain = &sequence.cacheable_chain(self.block_tokens)[..found.blocks as usize];
        let Ok(block_table) = self.kv.allocate(chain, num_blocks) else {
            budget.give_back(chunk);
            self.free_seats.push(seat);
            return Answer::NoPages;
        };
        let newly_cached = sequence.take_seat(seat, block_table, found.blocks, self.block_tokens);
        sequence.planned_tokens = chunk;
        self.counters.cached_prompt_tokens += u64::from(newly_cached);
        Answer::Seated
    }

    /// Moves a sequence that has its pages from the queue to the batch. Its tenant is charged for the prompt
    /// ahead, so that one tenant's many requests do not all come before its counter has moved.
    fn seat(&mut self, offer: &Offer, offers: &mut Offers) {
        let slot = offer.entry.slot;
        let sequence = &mut self.slots[slot];
        sequence.seated_at_step = self.step;
        sequence.bypassed = 0;
        if !sequence.was_admitted {
            sequence.was_admitted = true;
            self.counters.admitted += 1;
            let uncached = sequence.prompt_tokens - sequence.cached_prompt_tokens;
            self.fair.charge(sequence.account, super::fair_share::INPUT_WEIGHT * f64::from(uncached));
        }
        self.waiting.remove(sequence.class, sequence.account, sequence.id);
        self.running_batch += u32::from(sequence.class == Class::Batch);
        self.running.push(slot);
        self.behind.push(slot);
        offers.taken(offer, &self.waiting, &self.fair);
    }

    /// All that is known, and the first token to be generated unless it is the only one.
    fn blocks_to_admit(&self, sequence: &Sequence<C>) -> u32 {
        (sequence.len() + 1).min(sequence.final_positions()).div_ceil(self.block_tokens)
    }

    /// Pages kept for those who run: one for each that will need another. Without it a newcomer would be
    /// admitted only to be preempted a few steps later.
    fn growth_reserve(&self) -> u32 {
        let running = self.running.iter().map(|&slot| &self.slots[slot]);
        let growing = running.filter(|sequence| {
            let final_blocks = sequence.final_positions().div_ceil(self.block_tokens);
            sequence.block_table.len() < final_blocks as usize
        });
        u32::try_from(growing.count()).expect("at most as many as seats")
    }
}
