//! Sums of a chunk's values by weights.
#![expect(clippy::needless_range_loop, reason = "index loops over constants are unrolled into registers")]

use super::CHUNK_BLOCKS;
use super::attend::{SCORES, STATE};
use super::element::{Element, Half, Single};
use crate::cpu::simd::{LANES, Simd};
use crate::cpu::unroll::for_each_row;
use crate::kv::{BLOCK_TOKENS, KvType, PageLayout};

/// Weighted values of up to `count` queries; returns how many were done.
///
/// # Safety
/// `heads` holds the keys of the blocks of `tokens`, `weights` [`SCORES`] for each query, `out` a result for each.
#[inline(always)]
pub(super) unsafe fn weigh_queries<S: Simd>(
    s: S,
    layout: PageLayout,
    heads: &[*const u8; CHUNK_BLOCKS],
    tokens: std::ops::Range<usize>,
    weights: *const f32,
    out: *mut f32,
    count: usize,
) -> usize {
    macro_rules! weigh {
        ($count:literal) => {
            // SAFETY: the caller's promise.
            unsafe {
                match layout.kv_type {
                    KvType::F16 => weigh::<S, Half, $count>(s, layout, heads, tokens, weights, out),
                    KvType::F32 => weigh::<S, Single, $count>(s, layout, heads, tokens, weights, out),
                }
            }
        };
    }
    if S::QUERIES >= 4 && count >= 4 {
        weigh!(4)
    } else if S::QUERIES >= 4 && count >= 3 {
        weigh!(3)
    } else if S::QUERIES >= 4 && count >= 2 {
        weigh!(2)
    } else {
        weigh!(1)
    }
}

/// `Q` queries, four vectors of components at a time and then one by one, token after token.
///
/// # Safety
/// As [`weigh_queries`] with `count = Q`.
#[inline(always)]
unsafe fn weigh<S: Simd, E: Element, const Q: usize>(
    s: S,
    layout: PageLayout,
    heads: &[*const u8; CHUNK_BLOCKS],
    tokens: std::ops::Range<usize>,
    weights: *const f32,
    out: *mut f32,
) -> usize {
    let mut component = 0;
    while component < layout.head_dim {
        // SAFETY: the caller's promise; the components are inside the head.
        component += unsafe {
            if component + 4 * LANES <= layout.head_dim {
                weigh_components::<S, E, Q, 4>(s, layout, heads, tokens.clone(), weights, out, component)
            } else {
                weigh_components::<S, E, Q, 1>(s, layout, heads, tokens.clone(), weights, out, component)
            }
        };
    }
    Q
}

/// `V` vectors of components from `component` on; returns the number of components.
///
/// # Safety
/// As [`weigh_queries`] with `count = Q`; the components are inside the head.
#[inline(always)]
unsafe fn weigh_components<S: Simd, E: Element, const Q: usize, const V: usize>(
    s: S,
    layout: PageLayout,
    heads: &[*const u8; CHUNK_BLOCKS],
    tokens: std::ops::Range<usize>,
    weights: *const f32,
    out: *mut f32,
    component: usize,
) -> usize {
    let mut sums = [[s.splat(0.0); V]; Q];
    let mut token = tokens.start;
    while token < tokens.end {
        let block = token / BLOCK_TOKENS;
        let end = tokens.end.min((block + 1) * BLOCK_TOKENS);
        // SAFETY: the block's head was looked up; its values follow the keys.
        let values = unsafe { heads[block].add(layout.values_after() + component * E::BYTES) };
        while token < end {
            // SAFETY: values are `[16][head_dim]`, weights `SCORES` a query (the caller's promise).
            unsafe {
                let values = values.add(token % BLOCK_TOKENS * layout.head_dim * E::BYTES);
                let mut vectors = [s.splat(0.0); V];
                for v in 0..V {
                    vectors[v] = E::load(s, values.add(v * LANES * E::BYTES));
                }
                for_each_row!(q in 0..Q {
                    let weight = s.splat(*weights.add(q * SCORES + token));
                    for v in 0..V {
                        sums[q][v] = s.fma(weight, vectors[v], sums[q][v]);
                    }
                });
            }
            token += 1;
        }
    }
    for q in 0..Q {
        for v in 0..V {
            // SAFETY: `out` holds a result for each query (the caller's promise).
            unsafe {
                let at = q * (STATE + layout.head_dim) + STATE + component + v * LANES;
                s.store(out.add(at), sums[q][v]);
            }
        }
    }
    V * LANES
}
