//! Decodes come first: each sequence that is one token behind gets that token, and a page for it.

use super::Scheduler;
use super::budget::PrefillBudget;
use crate::sequence::Commit;
use crate::step::PageCopy;

impl<C: Commit> Scheduler<C> {
    /// Plans every decode that has, or can have, a page of its own to write to, and gives what the step has left for
    /// prefills. Who lacks a page makes another give way; if the page comes back only with a submission in flight, it
    /// sits this step out. Ends: each turn either goes on or leaves fewer who could give way, and one sequence alone
    /// always fits, as `add` refuses what never could. Notes who is further behind.
    pub(super) fn plan_decodes(&mut self, copies: &mut Vec<PageCopy>) -> PrefillBudget {
        let (mut num_decodes, mut awaited_pages) = (0, 0);
        self.behind.clear();
        let mut index = 0;
        while index < self.running.len() {
            let slot = self.running[index];
            let sequence = &mut self.slots[slot];
            let remaining = sequence.remaining();
            if remaining != 1 {
                if remaining > 1 && sequence.pending_samples == 0 {
                    self.behind.push(slot);
                }
                index += 1;
                continue;
            }
            let written_block = sequence.num_submitted_tokens / self.block_tokens;
            let mut has_page = sequence.own_block == Some(written_block);
            if !has_page {
                // Even where a second page is missing, the first may have been replaced.
                sequence.has_new_table = true;
                let table = &mut sequence.block_table;
                has_page = self.kv.prepare_write(table, written_block + 1, written_block, copies).is_ok();
            }
            if has_page {
                sequence.own_block = Some(written_block);
                sequence.planned_tokens = 1;
                num_decodes += 1;
                index += 1;
            } else if awaited_pages < self.num_returning() {
                awaited_pages += 1;
                index += 1;
            } else {
                let victim = self.victim(|_| true).expect("at least the one that asks is running");
                num_decodes -= self.slots[victim].planned_tokens;
                if self.give_way(victim).is_some_and(|victim_index| victim_index < index) {
                    index -= 1;
                }
            }
        }
        PrefillBudget::beside_decodes(&self.config, num_decodes)
    }
}
