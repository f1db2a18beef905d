//! Decodes come first: each sequence that is one token behind gets that token, and a page for it.

use super::Scheduler;
use super::budget::PrefillBudget;
use crate::step::PageCopy;

impl Scheduler {
    /// Plans every decode that has, or can have, a page of its own to write to, and gives what the step has left for
    /// prefills. Who lacks a page makes another give way; if the page comes back only with a submission in flight, it
    /// sits this step out. Ends: each turn either goes on or leaves fewer who could give way, and one sequence alone
    /// always fits, as `add` refuses what never could.
    pub(super) fn plan_decodes(&mut self, copies: &mut Vec<PageCopy>) -> PrefillBudget {
        let mut awaited_pages = 0;
        let mut index = 0;
        while index < self.running.len() {
            let slot = self.running[index];
            let sequence = &mut self.slots[slot];
            if !sequence.is_decoding() {
                index += 1;
                continue;
            }
            let written_block = sequence.num_submitted_tokens / self.block_tokens;
            let table = &mut sequence.block_table;
            if sequence.own_block == Some(written_block)
                || self.kv.prepare_write(table, written_block + 1, written_block, copies).is_ok()
            {
                sequence.own_block = Some(written_block);
                sequence.planned_tokens = 1;
                index += 1;
            } else if awaited_pages < self.num_returning() {
                awaited_pages += 1;
                index += 1;
            } else {
                let victim = self.victim(|_| true).expect("at least the one that asks is running");
                if self.give_way(victim).is_some_and(|victim_index| victim_index < index) {
                    index -= 1;
                }
            }
        }
        let num_decodes = self.running.iter().filter(|&&slot| self.slots[slot].planned_tokens > 0).count();
        let num_decodes = u32::try_from(num_decodes).expect("at most as many as seats");
        PrefillBudget::beside_decodes(&self.config, num_decodes)
    }
}
