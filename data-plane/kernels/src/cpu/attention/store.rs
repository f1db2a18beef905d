//! The first pass: a row's queries and keys normalised and turned, its keys and values stored.

use crate::attention::{AttentionStep, RopeStyle};
use crate::cpu::elementwise::rms_norm_row;
use crate::cpu::simd::{LANES, Simd};
use crate::kv::{BLOCK_TOKENS, KvType, RawPages};

/// The rows of one page: one thread writes a page, so no cache line has two writers.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageRows {
    page: u32,
    /// First row in the activations.
    row: usize,
    rows: usize,
    /// Slot of the first row.
    slot: usize,
}

/// Everything about the pass that its threads share.
pub(super) struct Writes<'a> {
    pub(super) units: Vec<PageRows>,
    pages: RawPages,
    step: &'a AttentionStep<'a>,
    query: *mut f32,
    key: *mut f32,
    value: &'a [f32],
}

// SAFETY: a unit's rows of queries and keys and its page are touched only by the thread that took the unit; rows and pages of
// units are distinct (checked in `new`).
unsafe impl Sync for Writes<'_> {}

impl<'a> Writes<'a> {
    /// The units of a step. Lengths were checked by the caller; panics if two blocks would be written to one page.
    pub(super) fn new(
        pages: RawPages,
        step: &'a AttentionStep<'a>,
        query: &'a mut [f32],
        key: &'a mut [f32],
        value: &'a [f32],
    ) -> Self {
        let mut units = Vec::new();
        let mut row = 0;
        for span in step.spans {
            let end = span.first_position + span.num_rows;
            let mut position = span.first_position;
            while position < end {
                let (block, slot) = (position / BLOCK_TOKENS, position % BLOCK_TOKENS);
                let rows = (BLOCK_TOKENS - slot).min(end - position);
                units.push(PageRows { page: span.block_table[block], row, rows, slot });
                position += rows;
                row += rows;
            }
        }
        let mut written: Vec<u32> = units.iter().map(|unit| unit.page).collect();
        written.sort_unstable();
        assert!(
            written.windows(2).all(|pair| pair[0] != pair[1]),
            "a page is written by one block of one sequence"
        );
        Self { units, pages, step, query: query.as_mut_ptr(), key: key.as_mut_ptr(), value }
    }
}

/// Prepares and stores the rows of one page.
#[inline(always)]
pub(super) fn store_rows<S: Simd>(s: S, writes: &Writes<'_>, unit: &PageRows) {
    let layout = *writes.pages.layout();
    let head_dim = layout.head_dim;
    let (query_columns, key_columns) =
        (writes.step.params.num_heads * head_dim, layout.num_kv_heads * head_dim);
    for offset in 0..unit.rows {
        let row = unit.row + offset;
        // SAFETY: the row is one of the activations' rows and this unit's alone (`Writes`' contract).
        let (query, key) = unsafe {
            (
                std::slice::from_raw_parts_mut(writes.query.add(row * query_columns), query_columns),
                std::slice::from_raw_parts_mut(writes.key.add(row * key_columns), key_columns),
            )
        };
        let value = &writes.value[row * key_columns..][..key_columns];
        prepare_heads(s, writes.step, row, head_dim, query, true);
        prepare_heads(s, writes.step, row, head_dim, key, false);
        for head in 0..layout.num_kv_heads {
            let range = head * head_dim..(head + 1) * head_dim;
            let keys = writes.pages.head(unit.page, writes.step.layer, head);
            // SAFETY: the page is this unit's alone to write, and `head` checked page, layer and head.
            unsafe { put(s, keys, layout, unit.slot + offset, &key[range.clone()], &value[range]) };
        }
    }
}

/// Normalises (if the model does) and turns every head of one row.
#[inline(always)]
fn prepare_heads<S: Simd>(
    s: S,
    step: &AttentionStep<'_>,
    row: usize,
    head_dim: usize,
    heads: &mut [f32],
    is_query: bool,
) {
    let (cosines, sines) = step.rope.row(row);
    let mut start = 0;
    while start < heads.len() {
        let head = &mut heads[start..start + head_dim];
        if let Some(norm) = step.head_norm {
            let weight = if is_query { norm.query_weight } else { norm.key_weight };
            let plain = head.to_vec();
            rms_norm_row(s, &plain, weight, norm.epsilon, head);
        }
        turn(step.rope.style(), head, cosines, sines);
        start += head_dim;
    }
}

/// Plain multiplications and additions, which the compiler vectorises without changing a bit.
#[inline(always)]
fn turn(style: RopeStyle, head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let half = cosines.len();
    match style {
        RopeStyle::Interleaved => {
            let (pairs, _) = head[..2 * half].as_chunks_mut::<2>();
            for i in 0..half {
                let [x, y] = pairs[i];
                pairs[i] = [x * cosines[i] - y * sines[i], y * cosines[i] + x * sines[i]];
            }
        }
        RopeStyle::Halves => {
            let (first, second) = head[..2 * half].split_at_mut(half);
            for i in 0..half {
                let (x, y) = (first[i], second[i]);
                first[i] = x * cosines[i] - y * sines[i];
                second[i] = y * cosines[i] + x * sines[i];
            }
        }
    }
}

/// Stores a key (down its column) and a value (along its row) in a head's part of a page.
///
/// # Safety
/// `keys` is the start of a head of this layout, exclusively writable.
#[inline(always)]
unsafe fn put<S: Simd>(
    s: S,
    keys: *mut u8,
    layout: crate::kv::PageLayout,
    slot: usize,
    key: &[f32],
    value: &[f32],
) {
    let head_dim = layout.head_dim;
    // SAFETY: `slot` is below 16 and components below `head_dim`, a multiple of 16, so every place is inside the head's keys or,
    // `values_after` later, its values (the caller's promise).
    unsafe {
        let values = keys.add(layout.values_after());
        match layout.kv_type {
            KvType::F16 => {
                let (keys, values) = (keys.cast::<u16>(), values.cast::<u16>().add(slot * head_dim));
                let mut halves = [0_u16; LANES];
                for start in (0..head_dim).step_by(LANES) {
                    s.store_half(halves.as_mut_ptr(), s.load(key[start..start + LANES].as_ptr()));
                    for (i, half) in halves.iter().enumerate() {
                        keys.add((start + i) * BLOCK_TOKENS + slot).write(*half);
                    }
                    s.store_half(values.add(start), s.load(value[start..start + LANES].as_ptr()));
                }
            }
            KvType::F32 => {
                let (keys, values) = (keys.cast::<f32>(), values.cast::<f32>().add(slot * head_dim));
                for (i, (key, value)) in key.iter().zip(value).enumerate() {
                    keys.add(i * BLOCK_TOKENS + slot).write(*key);
                    values.add(i).write(*value);
                }
            }
        }
    }
}
