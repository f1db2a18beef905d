//! The second pass: scores, softmax and weighted values of one unit, chunk by chunk.
#![expect(clippy::needless_range_loop, reason = "index loops over constants are unrolled into registers")]

use std::marker::PhantomData;

use super::score::score_queries;
use super::weigh::weigh_queries;
use super::{CHUNK, CHUNK_BLOCKS, Call, Unit, first_visible};
use crate::attention::AttentionStep;
use crate::cpu::elementwise::exp;
use crate::cpu::simd::{LANES, Simd};
use crate::kv::{BLOCK_TOKENS, RawPages};

/// A query's scores of a chunk, and one block to spare: blocks are scored in pairs.
pub(super) const SCORES: usize = CHUNK + BLOCK_TOKENS;
/// Largest and sum beside an accumulated output, padded to a vector.
pub(super) const STATE: usize = LANES;

/// Output rows, written by different threads at different heads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queries<'a> {
    base: *mut f32,
    len: usize,
    row_len: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: each unit writes only its own rows' heads (`head`'s contract).
unsafe impl Send for Queries<'_> {}
// SAFETY: as above.
unsafe impl Sync for Queries<'_> {}

impl<'a> Queries<'a> {
    pub(super) fn new(out: &'a mut [f32], row_len: usize) -> Self {
        Self { base: out.as_mut_ptr(), len: out.len(), row_len, lifetime: PhantomData }
    }

    /// The output of one head of one row.
    ///
    /// # Safety
    /// Nobody else has the same head of the same row.
    #[inline(always)]
    unsafe fn head(self, row: usize, head: usize, head_dim: usize) -> &'a mut [f32] {
        let start = row * self.row_len + head * head_dim;
        assert!((head + 1) * head_dim <= self.row_len && start + head_dim <= self.len);
        // SAFETY: inside the slice, asserted; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), head_dim) }
    }
}

/// Results of chunks computed apart: `[queries][STATE + head_dim]` (largest score, sum of weights; then the weighted values).
#[derive(Debug, Clone, Copy)]
pub(super) struct Partials<'a> {
    base: *mut f32,
    len: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: each unit writes only its own queries' results, and they are read after all are written.
unsafe impl Send for Partials<'_> {}
// SAFETY: as above.
unsafe impl Sync for Partials<'_> {}

impl<'a> Partials<'a> {
    /// Room for every query of `units` (none if `None`).
    pub(super) fn new(
        memory: &'a mut Vec<f32>,
        units: Option<&Vec<Unit>>,
        step: &AttentionStep<'_>,
        pages: RawPages,
    ) -> Self {
        let queries_a_row = step.params.num_heads / pages.layout().num_kv_heads;
        let queries: usize = units.into_iter().flatten().map(|unit| unit.rows * queries_a_row).sum();
        memory.resize((queries * (STATE + pages.layout().head_dim)).max(memory.len()), 0.0);
        Self { base: memory.as_mut_ptr(), len: memory.len(), lifetime: PhantomData }
    }

    /// The results of `count` queries from `first` on.
    ///
    /// # Safety
    /// Nobody else has the same queries.
    #[inline(always)]
    unsafe fn queries(self, first: usize, count: usize, head_dim: usize) -> &'a mut [f32] {
        let size = STATE + head_dim;
        assert!((first + count) * size <= self.len);
        // SAFETY: inside the memory, asserted; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(first * size), count * size) }
    }
}

/// Computes a unit: all its chunks and the outputs, or its one chunk into the partial results.
#[inline(always)]
pub(super) fn attend<S: Simd>(s: S, call: &Call<'_>, unit: Unit, memory: &mut Vec<f32>) {
    let layout = call.pages.layout();
    let head_dim = layout.head_dim;
    let group = call.step.params.num_heads / layout.num_kv_heads;
    let queries = unit.rows * group;
    let size = STATE + head_dim;
    memory.resize((queries * (SCORES + 2 * size)).max(memory.len()), 0.0);
    let (scores, states) = memory.split_at_mut(queries * SCORES);
    if let Some(chunk) = unit.chunk {
        // SAFETY: the unit's partial results are this thread's alone.
        let partial = unsafe { call.partials.queries(unit.first_partial, queries, head_dim) };
        attend_chunk(s, call, unit, chunk, scores, partial);
        return;
    }
    let (merged, states) = states.split_at_mut(queries * size);
    let current = &mut states[..queries * size];
    let chunks = unit.chunks(call.step.params.window);
    attend_chunk(s, call, unit, chunks.start, scores, merged);
    for chunk in chunks.start + 1..chunks.end {
        attend_chunk(s, call, unit, chunk, scores, current);
        for query in 0..queries {
            merge_query(s, &mut merged[query * size..][..size], &current[query * size..][..size]);
        }
    }
    finish(s, call, unit, merged);
}

/// Merges the chunks of one unit, in order, and writes the outputs.
#[inline(always)]
pub(super) fn merge<S: Simd>(s: S, call: &Call<'_>, chunks: &[Unit]) {
    let layout = call.pages.layout();
    let queries = chunks[0].rows * (call.step.params.num_heads / layout.num_kv_heads);
    let size = STATE + layout.head_dim;
    // SAFETY: all partial results are written, and this thread took these chunks.
    let merged = unsafe { call.partials.queries(chunks[0].first_partial, queries, layout.head_dim) };
    for chunk in &chunks[1..] {
        // SAFETY: as above; other queries than the first chunk's.
        let current = unsafe { call.partials.queries(chunk.first_partial, queries, layout.head_dim) };
        for query in 0..queries {
            merge_query(s, &mut merged[query * size..][..size], &current[query * size..][..size]);
        }
    }
    finish(s, call, chunks[0], merged);
}

/// Adds a chunk's result to the result of the chunks before it. A chunk that the query does not see changes nothing.
#[inline(always)]
fn merge_query<S: Simd>(s: S, merged: &mut [f32], chunk: &[f32]) {
    if chunk[1] == 0.0 {
        return;
    }
    if merged[1] == 0.0 {
        merged.copy_from_slice(chunk);
        return;
    }
    let largest = if merged[0] > chunk[0] { merged[0] } else { chunk[0] };
    let factors = exp(s, s.select(1, s.splat(merged[0] - largest), s.splat(chunk[0] - largest)));
    let factors = s.to_array(factors);
    merged[0] = largest;
    merged[1] = merged[1] * factors[0] + chunk[1] * factors[1];
    let (before, now) = (s.splat(factors[0]), s.splat(factors[1]));
    let (merged, _) = merged[STATE..].as_chunks_mut::<LANES>();
    let (chunk, _) = chunk[STATE..].as_chunks::<LANES>();
    for (merged, chunk) in merged.iter_mut().zip(chunk) {
        *merged = s.to_array(s.fma(s.array(merged), before, s.mul(s.array(chunk), now)));
    }
}

/// Divides by the sum of weights into the outputs.
#[inline(always)]
fn finish<S: Simd>(s: S, call: &Call<'_>, unit: Unit, merged: &[f32]) {
    let layout = call.pages.layout();
    let (head_dim, group) = (layout.head_dim, call.step.params.num_heads / layout.num_kv_heads);
    let size = STATE + head_dim;
    for query in 0..unit.rows * group {
        let state = &merged[query * size..][..size];
        let inverse = s.splat(1.0 / state[1]);
        // SAFETY: the unit's rows and heads are this thread's alone.
        let out = unsafe {
            call.out.head(unit.row + query / group, unit.kv_head * group + query % group, head_dim)
        };
        let (values, _) = state[STATE..].as_chunks::<LANES>();
        let (out, _) = out.as_chunks_mut::<LANES>();
        for (out, value) in out.iter_mut().zip(values) {
            *out = s.to_array(s.mul(s.array(value), inverse));
        }
    }
}

/// One chunk of a unit: `[queries][STATE + head_dim]` results. A query that sees nothing of it gets a sum of 0.
#[inline(always)]
fn attend_chunk<S: Simd>(
    s: S,
    call: &Call<'_>,
    unit: Unit,
    chunk: usize,
    scores: &mut [f32],
    results: &mut [f32],
) {
    let layout = *call.pages.layout();
    let params = call.step.params;
    let (head_dim, group) = (layout.head_dim, params.num_heads / layout.num_kv_heads);
    let queries = unit.rows * group;
    let size = STATE + head_dim;
    let start = chunk * CHUNK;
    // Positions of the chunk that some row sees.
    let from = first_visible(unit.position, params.window).max(start);
    let to = (unit.position + unit.rows).min(start + CHUNK);
    let table = call.step.spans[unit.span].block_table;
    let mut heads = [std::ptr::null::<u8>(); CHUNK_BLOCKS];
    for block in from / BLOCK_TOKENS..to.div_ceil(BLOCK_TOKENS) {
        heads[block % CHUNK_BLOCKS] = call.pages.head(table[block], call.step.layer, unit.kv_head);
    }
    let visible = (from - start) / BLOCK_TOKENS..(to - start).div_ceil(BLOCK_TOKENS);
    let query_columns = params.num_heads * head_dim;
    let first_query = |query: usize| {
        let row = unit.row + query / group;
        &call.query[row * query_columns + (unit.kv_head * group + query % group) * head_dim..][..head_dim]
    };
    let mut vectors = [std::ptr::null::<f32>(); super::QUERIES_A_UNIT];
    let mut query = 0;
    while query < queries {
        let count = (queries - query).min(if S::QUERIES >= 4 { 8 } else { 2 });
        for i in 0..count {
            vectors[i] = first_query(query + i).as_ptr();
        }
        let out = scores[query * SCORES..].as_mut_ptr();
        // SAFETY: the visible blocks' heads were looked up above, the queries are `head_dim` long, and `out` has `SCORES` for
        // each of them.
        query += unsafe {
            score_queries(s, layout.kv_type, &heads, visible.clone(), head_dim, &vectors, count, out)
        };
    }
    for query in 0..queries {
        let position = unit.position + query / group;
        // A row may see nothing of the chunk: it stands before it, or its window begins after it.
        let end = (position + 1).clamp(start, start + CHUNK);
        let seen = first_visible(position, params.window).clamp(start, end) - start..end - start;
        let scores = &mut scores[query * SCORES..][..CHUNK];
        let (largest, sum) = softmax(s, scores, seen, visible.clone(), params.scale);
        results[query * size] = largest;
        results[query * size + 1] = sum;
    }
    let tokens = from - start..to - start;
    let mut query = 0;
    while query < queries {
        let count = (queries - query).min(S::QUERIES);
        let (weights, out) = (scores[query * SCORES..].as_ptr(), results[query * size..].as_mut_ptr());
        // SAFETY: as above; weights and results hold `count` queries from here on.
        query += unsafe { weigh_queries(s, layout, &heads, tokens.clone(), weights, out, count) };
    }
}

/// Turns scores into weights of their largest: returns it and the weights' sum. Weights outside of `seen` are 0.
#[inline(always)]
fn softmax<S: Simd>(
    s: S,
    scores: &mut [f32],
    seen: std::ops::Range<usize>,
    visible: std::ops::Range<usize>,
    scale: f32,
) -> (f32, f32) {
    let (vectors, _) = scores.as_chunks_mut::<LANES>();
    let nothing = s.splat(f32::NEG_INFINITY);
    let mut largest = nothing;
    for block in visible.clone() {
        let score = s.mul(s.array(&vectors[block]), s.splat(scale));
        let score = s.select(lanes_of(block, &seen), score, nothing);
        vectors[block] = s.to_array(score);
        largest = s.max(score, largest);
    }
    let largest = s.reduce_max(largest);
    let mut sums = s.splat(0.0);
    for block in visible {
        let weight = exp(s, s.sub(s.array(&vectors[block]), s.splat(largest)));
        let weight = s.select(lanes_of(block, &seen), weight, s.splat(0.0));
        vectors[block] = s.to_array(weight);
        sums = s.add(sums, weight);
    }
    (largest, s.reduce_add(sums))
}

/// The lanes of a block that lie in a range of a chunk's positions.
#[inline(always)]
fn lanes_of(block: usize, range: &std::ops::Range<usize>) -> u16 {
    let below = |end: usize| {
        let lanes = end.saturating_sub(block * BLOCK_TOKENS).min(LANES);
        if lanes == LANES { u16::MAX } else { (1_u16 << lanes) - 1 }
    };
    below(range.end) & !below(range.start)
}
