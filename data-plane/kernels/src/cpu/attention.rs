//! Attention over paged keys and values.
//!
//! Two passes over the threads. First the step's rows: normalise heads, turn, store keys and values in their pages. Then the
//! queries: the query heads of one KV head, for a few rows of one sequence at a time, so that each key is loaded once for all.
//!
//! A query's context is cut into chunks of [`CHUNK`] positions at absolute multiples, each with a softmax of its own; chunks
//! are merged in order. Where there are fewer queries than threads want, chunks are computed apart and merged after, in the
//! same order, so the bits do not depend on the split, nor on how the sequence was prefilled or what else is in the batch.

mod attend;
mod element;
mod score;
mod store;
mod weigh;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::isa::Isa;
use super::pool::ThreadPool;
use super::simd::{Kernel, Simd, dispatch};
use crate::attention::AttentionStep;
use crate::kv::{BLOCK_TOKENS, PagePool, RawPages};
use attend::{Partials, Queries, attend, merge};
use store::{Writes, store_rows};

/// Positions of a chunk.
pub(super) const CHUNK: usize = 256;
/// Blocks of a chunk.
const CHUNK_BLOCKS: usize = CHUNK / BLOCK_TOKENS;
/// Query heads that are worked on together, about: what keeps the score buffer in the first cache level.
const QUERIES_A_UNIT: usize = 12;
/// Elements of queries and keys below which one thread prepares all rows.
const SERIAL_ELEMENTS: usize = 2048;
/// Units a thread should have; below that, and with more than one chunk, chunks are units.
const UNITS_A_THREAD: usize = 3;

/// Memory kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    partials: Vec<f32>,
    threads: Vec<Mutex<Vec<f32>>>,
}

/// One layer's attention of a step; see [`super::Cpu::attention`].
#[expect(clippy::too_many_arguments, reason = "the operands of one fused operation")]
pub(super) fn attention(
    isa: Isa,
    threads: &ThreadPool,
    scratch: &mut Scratch,
    pool: &mut PagePool,
    step: &AttentionStep<'_>,
    query: &mut [f32],
    key: &mut [f32],
    value: &[f32],
    out: &mut [f32],
) {
    let (head_dim, kv_heads) = (pool.layout().head_dim, pool.layout().num_kv_heads);
    let (rows, heads) = (step.num_rows(), step.params.num_heads);
    assert!(heads > 0 && heads.is_multiple_of(kv_heads), "{heads} query heads for {kv_heads} KV heads");
    assert!(
        query.len() == rows * heads * head_dim && out.len() == query.len(),
        "a query and an output for each row"
    );
    assert!(
        key.len() == rows * kv_heads * head_dim && value.len() == key.len(),
        "a key and a value for each row"
    );
    assert!(step.rope.num_rows() == rows && 2 * step.rope.half_dim() <= head_dim, "angles for each row");
    for span in step.spans {
        let blocks = (span.first_position + span.num_rows).div_ceil(BLOCK_TOKENS);
        assert!(span.block_table.len() >= blocks, "a page for each block");
    }
    if let Some(norm) = step.head_norm {
        assert!(
            norm.query_weight.len() == head_dim && norm.key_weight.len() == head_dim,
            "a weight for each component"
        );
    }
    store(isa, threads, pool, step, (&mut *query, key, value));
    let pages = pool.raw();
    let units = units(threads, pages, step);
    let chunked = units.iter().any(|unit| unit.chunk.is_some());
    let partials = Partials::new(&mut scratch.partials, chunked.then_some(&units), step, pages);
    scratch.threads.resize_with(threads.num_threads(), Mutex::default);
    let call = Call { pages, step, query, out: Queries::new(out, heads * head_dim), partials };
    let next = AtomicUsize::new(0);
    threads.run(&|thread| {
        let mut memory = scratch.threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
        dispatch(isa, Attend { call: &call, units: &units, next: &next, memory: &mut memory });
    });
    if chunked {
        let next = AtomicUsize::new(0);
        threads.run(&|_| dispatch(isa, Merge { call: &call, units: &units, next: &next }));
    }
}

/// Everything about a call that its threads share.
pub(super) struct Call<'a> {
    pages: RawPages,
    step: &'a AttentionStep<'a>,
    query: &'a [f32],
    out: Queries<'a>,
    partials: Partials<'a>,
}

/// The query heads of one KV head for some rows of one span: one thread's work at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit {
    span: usize,
    /// First row in the activations, and its position.
    row: usize,
    position: usize,
    rows: usize,
    kv_head: usize,
    /// The only chunk to compute, if chunks are computed apart.
    chunk: Option<usize>,
    /// Number of the unit's first query among all partial results.
    first_partial: usize,
}

impl Unit {
    /// The chunks that some row of the unit sees.
    fn chunks(&self, window: Option<usize>) -> std::ops::Range<usize> {
        first_visible(self.position, window) / CHUNK..(self.position + self.rows).div_ceil(CHUNK)
    }
}

/// The first position that a query at `position` sees.
fn first_visible(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

fn units(threads: &ThreadPool, pages: RawPages, step: &AttentionStep<'_>) -> Vec<Unit> {
    let kv_heads = pages.layout().num_kv_heads;
    let queries_a_row = step.params.num_heads / kv_heads;
    let rows_a_unit = (QUERIES_A_UNIT / queries_a_row).max(1);
    let mut units = Vec::new();
    let mut row = 0;
    for (span, rows) in step.spans.iter().map(|span| span.num_rows).enumerate() {
        for offset in (0..rows).step_by(rows_a_unit) {
            let position = step.spans[span].first_position + offset;
            let rows = rows_a_unit.min(rows - offset);
            units.extend((0..kv_heads).map(|kv_head| Unit {
                span,
                row: row + offset,
                position,
                rows,
                kv_head,
                chunk: None,
                first_partial: 0,
            }));
        }
        row += rows;
    }
    let enough = UNITS_A_THREAD * threads.num_threads();
    let wants_chunks = threads.num_threads() > 1 && units.len() < enough;
    if !wants_chunks || units.iter().all(|unit| unit.chunks(step.params.window).len() < 2) {
        return units;
    }
    let mut first_partial = 0;
    let mut chunked = Vec::new();
    for unit in units {
        for chunk in unit.chunks(step.params.window) {
            chunked.push(Unit { chunk: Some(chunk), first_partial, ..unit });
            first_partial += unit.rows * queries_a_row;
        }
    }
    chunked
}

struct Attend<'a> {
    call: &'a Call<'a>,
    units: &'a [Unit],
    next: &'a AtomicUsize,
    memory: &'a mut Vec<f32>,
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        while let Some(unit) = self.units.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            attend(s, self.call, *unit, self.memory);
        }
    }
}

struct Merge<'a> {
    call: &'a Call<'a>,
    units: &'a [Unit],
    next: &'a AtomicUsize,
}

impl Kernel for Merge<'_> {
    type Output = ();

    /// A turn is all chunks of the unit that starts at the counter's index; the others' turns are empty.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = self.units.get(index) else { return };
            let chunks = unit.chunks(self.call.step.params.window);
            if unit.chunk == Some(chunks.start) {
                merge(s, self.call, &self.units[index..index + chunks.len()]);
            }
        }
    }
}

/// Prepares the rows: heads normalised and turned, keys and values in their pages.
fn store(
    isa: Isa,
    threads: &ThreadPool,
    pool: &mut PagePool,
    step: &AttentionStep<'_>,
    (query, key, value): (&mut [f32], &mut [f32], &[f32]),
) {
    let elements = query.len() + key.len();
    let writes = Writes::new(pool.raw(), step, query, key, value);
    let next = AtomicUsize::new(0);
    let work = |_| dispatch(isa, Store { writes: &writes, next: &next });
    if elements <= SERIAL_ELEMENTS { work(0) } else { threads.run(&work) }
}

struct Store<'a> {
    writes: &'a Writes<'a>,
    next: &'a AtomicUsize,
}

impl Kernel for Store<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        while let Some(unit) = self.writes.units.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            store_rows(s, self.writes, unit);
        }
    }
}

#[cfg(test)]
mod tests;
