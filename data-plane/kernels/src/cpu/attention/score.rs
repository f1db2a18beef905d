//! Dot products of queries with the keys of a chunk.

use super::CHUNK_BLOCKS;
use super::attend::SCORES;
use super::element::{Element, Half, Single};
use crate::cpu::simd::Simd;
use crate::cpu::unroll::for_each_row;
use crate::kv::{BLOCK_TOKENS, KvType};

/// Scores of up to `count` queries; returns how many were done.
///
/// # Safety
/// `heads` holds the keys of every visible block, `queries` at least `count` vectors of `head_dim`, `out` [`SCORES`] for each.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the operands of one kernel")]
pub(super) unsafe fn score_queries<S: Simd>(
    s: S,
    kv_type: KvType,
    heads: &[*const u8; CHUNK_BLOCKS],
    visible: std::ops::Range<usize>,
    head_dim: usize,
    queries: &[*const f32],
    count: usize,
    out: *mut f32,
) -> usize {
    macro_rules! score {
        ($count:literal) => {
            // SAFETY: the caller's promise.
            unsafe {
                match kv_type {
                    KvType::F16 => score::<S, Half, $count>(s, heads, visible, head_dim, queries, out),
                    KvType::F32 => score::<S, Single, $count>(s, heads, visible, head_dim, queries, out),
                }
            }
        };
    }
    if S::QUERIES >= 4 && count >= 8 {
        score!(8)
    } else if S::QUERIES >= 4 && count >= 4 {
        score!(4)
    } else if S::QUERIES >= 4 && count >= 3 {
        score!(3)
    } else if count >= 2 {
        score!(2)
    } else {
        score!(1)
    }
}

/// `Q` queries by two blocks at a time (the second of the last pair may be a repeat): sixteen dot products a vector, component
/// after component.
///
/// # Safety
/// As [`score_queries`] with `count = Q`.
#[inline(always)]
unsafe fn score<S: Simd, E: Element, const Q: usize>(
    s: S,
    heads: &[*const u8; CHUNK_BLOCKS],
    visible: std::ops::Range<usize>,
    head_dim: usize,
    queries: &[*const f32],
    out: *mut f32,
) -> usize {
    let head_bytes = 2 * head_dim * BLOCK_TOKENS * E::BYTES;
    let mut block = visible.start;
    while block < visible.end {
        let pair = if block + 1 < visible.end { block + 1 } else { block };
        let (first, second) = (heads[block], heads[pair]);
        // The next pair's keys and values; pages follow no order that hardware could guess.
        let next = [heads[(block + 2) % CHUNK_BLOCKS], heads[(block + 3) % CHUNK_BLOCKS]];
        let lines = head_bytes / 64 / head_dim;
        let mut sums = [[s.splat(0.0); 2]; Q];
        for component in 0..head_dim {
            for line in component * lines..(component + 1) * lines {
                s.prefetch(next[0].wrapping_add(64 * line));
                s.prefetch(next[1].wrapping_add(64 * line));
            }
            // SAFETY: keys are `[head_dim][16]` (the caller's promise).
            unsafe {
                let at = component * BLOCK_TOKENS * E::BYTES;
                let (first, second) = (E::load(s, first.add(at)), E::load(s, second.add(at)));
                for_each_row!(q in 0..Q {
                    let query = s.splat(*queries[q].add(component));
                    sums[q][0] = s.fma(query, first, sums[q][0]);
                    sums[q][1] = s.fma(query, second, sums[q][1]);
                });
            }
        }
        for (q, sums) in sums.iter().enumerate() {
            // SAFETY: `block + 1` is at most `CHUNK_BLOCKS`, so both vectors are inside the query's `SCORES`.
            unsafe {
                let out = out.add(q * SCORES + block * BLOCK_TOKENS);
                s.store(out, sums[0]);
                s.store(out.add(BLOCK_TOKENS), sums[1]);
            }
        }
        block += 2;
    }
    Q
}
