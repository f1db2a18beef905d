//! Causal attention over paged keys and values.

use super::activation::softmax;
use super::matmul::dot;
use super::{rms_norm, rope};
use crate::attention::AttentionStep;
use crate::kv::{BLOCK_TOKENS, PagePool};

/// One layer's attention for a step: normalises (if asked) and turns queries and keys, stores keys and values of every row in
/// its page, then lets every row look at its sequence up to itself. `query`, `out`: `[rows, num_heads · head_dim]`;
/// `key`, `value`: `[rows, num_kv_heads · head_dim]`. `query` and `key` are changed in place.
pub fn attention(
    pool: &mut PagePool,
    step: &AttentionStep<'_>,
    query: &mut [f32],
    key: &mut [f32],
    value: &[f32],
    out: &mut [f32],
) {
    let head_dim = pool.layout().head_dim;
    if let Some(norm) = step.head_norm {
        let (plain_query, plain_key) = (query.to_vec(), key.to_vec());
        rms_norm(&plain_query, norm.query_weight, norm.epsilon, query);
        rms_norm(&plain_key, norm.key_weight, norm.epsilon, key);
    }
    rope(query, head_dim, step.rope);
    rope(key, head_dim, step.rope);
    store(pool, step, key, value);
    let columns = step.params.num_heads * head_dim;
    assert_eq!(query.len(), step.num_rows() * columns, "the spans' rows are the activations' rows");
    assert_eq!(query.len(), out.len(), "an output for each query");
    let mut rows = query.chunks_exact(columns).zip(out.chunks_exact_mut(columns));
    for span in step.spans {
        for (position, (query, out)) in (span.first_position..).zip(rows.by_ref().take(span.num_rows)) {
            attend(pool, step, span.block_table, position, query, out);
        }
    }
}

fn store(pool: &mut PagePool, step: &AttentionStep<'_>, key: &[f32], value: &[f32]) {
    let (head_dim, heads) = (pool.layout().head_dim, pool.layout().num_kv_heads);
    let columns = head_dim * heads;
    assert!(
        key.len() == step.num_rows() * columns && value.len() == key.len(),
        "a key and a value for each row"
    );
    let mut rows = key.chunks_exact(columns).zip(value.chunks_exact(columns));
    for span in step.spans {
        for (position, (key, value)) in (span.first_position..).zip(rows.by_ref().take(span.num_rows)) {
            let page = span.block_table[position / BLOCK_TOKENS];
            for head in 0..heads {
                let range = head * head_dim..(head + 1) * head_dim;
                pool.write(
                    page,
                    step.layer,
                    head,
                    position % BLOCK_TOKENS,
                    &key[range.clone()],
                    &value[range],
                );
            }
        }
    }
}

fn attend(
    pool: &PagePool,
    step: &AttentionStep<'_>,
    block_table: &[u32],
    position: usize,
    query: &[f32],
    out: &mut [f32],
) {
    let AttentionStep { layer, params, .. } = *step;
    let head_dim = pool.layout().head_dim;
    let heads_per_kv = params.num_heads / pool.layout().num_kv_heads;
    let first = params.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let mut vector = vec![0.0; head_dim];
    let heads = query.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
    for (head, (query, out)) in heads.enumerate() {
        let kv_head = head / heads_per_kv;
        let mut scores = Vec::with_capacity(position + 1 - first);
        for at in first..=position {
            pool.read_key(block_table[at / BLOCK_TOKENS], layer, kv_head, at % BLOCK_TOKENS, &mut vector);
            scores.push(dot(query, &vector) * params.scale);
        }
        softmax(&mut scores);
        out.fill(0.0);
        for (at, weight) in (first..=position).zip(scores) {
            pool.read_value(block_table[at / BLOCK_TOKENS], layer, kv_head, at % BLOCK_TOKENS, &mut vector);
            out.iter_mut().zip(&vector).for_each(|(out, value)| *out += weight * value);
        }
    }
}
