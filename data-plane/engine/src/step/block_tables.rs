//! The block tables of all seats, as plans have told of them.

use super::{Seat, StepPlan, TableUpdate};
use crate::kv_cache::BlockId;

/// What an executor keeps between plans, which tell only of tables that change: `[seats, layer groups]` of page ids.
#[derive(Clone, Debug)]
pub struct BlockTables {
    tables: Vec<Vec<BlockId>>,
    num_layer_groups: usize,
}

impl BlockTables {
    /// Empty tables.
    pub fn new(num_seats: u32, num_layer_groups: u32) -> Self {
        let (seats, num_layer_groups) = (num_seats as usize, num_layer_groups as usize);
        Self { tables: vec![Vec::new(); seats * num_layer_groups], num_layer_groups }
    }

    /// Takes a table in; [`super::StepPlan::check_tables`] has seen that it has a place here.
    pub fn set(&mut self, table: &TableUpdate) {
        let held = self.held(table.seat, table.layer_group);
        held.clear();
        held.extend_from_slice(table.blocks.blocks());
    }

    /// The pages of a seat in one layer group: position `p` lies in page `p / block_tokens` of them, at slot
    /// `p % block_tokens`. There may be more than a step needs.
    pub fn blocks(&self, seat: Seat, layer_group: u32) -> &[BlockId] {
        &self.tables[self.index(seat, layer_group)]
    }

    /// Pages that every layer group of a seat has at least.
    pub(super) fn len(&self, seat: Seat) -> usize {
        let first = self.index(seat, 0);
        self.tables[first..][..self.num_layer_groups].iter().map(Vec::len).min().unwrap_or(0)
    }

    /// As if a plan had told of nothing, and none before it of the same tables: it was refused.
    pub(crate) fn forget(&mut self, plan: &StepPlan) {
        for table in &plan.block_tables {
            self.held(table.seat, table.layer_group).clear();
        }
    }

    fn held(&mut self, seat: Seat, layer_group: u32) -> &mut Vec<BlockId> {
        let index = self.index(seat, layer_group);
        &mut self.tables[index]
    }

    fn index(&self, seat: Seat, layer_group: u32) -> usize {
        seat.0 as usize * self.num_layer_groups + layer_group as usize
    }
}
