//! Against the reference, and bit for bit across instruction sets, threads, batches and prefill chunks.

use crate::attention::{
    AttentionParams, AttentionStep, HeadNorm, RopeParams, RopeStyle, RopeTable, SequenceSpan,
};
use crate::cpu::{Cpu, Isa};
use crate::kv::{KvType, PageLayout, PagePool};
use crate::reference;
use crate::test_data::Random;

/// One sequence's queries, keys and values, and its pages.
struct Sequence {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    table: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    style: RopeStyle,
    head_norm: bool,
}

const LAYERS: usize = 2;

impl Shape {
    fn pool(&self, kv_type: KvType, pages: usize) -> PagePool {
        let layout =
            PageLayout { num_layers: LAYERS, num_kv_heads: self.kv_heads, head_dim: self.head_dim, kv_type };
        PagePool::new(layout, pages).unwrap()
    }

    fn sequence(&self, len: usize, first_page: u32, seed: u64) -> Sequence {
        let mut random = Random(seed);
        let blocks = u32::try_from(len.div_ceil(16)).unwrap();
        Sequence {
            query: random.floats(len * self.heads * self.head_dim),
            key: random.floats(len * self.kv_heads * self.head_dim),
            value: random.floats(len * self.kv_heads * self.head_dim),
            // Pages in descending order: tables are not runs of memory.
            table: (first_page..first_page + blocks).rev().collect(),
        }
    }
}

type Attention<'a> =
    dyn Fn(&mut PagePool, &AttentionStep<'_>, &mut [f32], &mut [f32], &[f32], &mut [f32]) + 'a;

/// Feeds sequences step by step, `steps[i][s]` rows of sequence `s` in step `i`, and returns each sequence's outputs.
fn run(
    shape: Shape,
    pool: &mut PagePool,
    sequences: &[Sequence],
    steps: &[Vec<usize>],
    f: &Attention<'_>,
) -> Vec<Vec<f32>> {
    let (query_columns, key_columns) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let norm_weights = Random(77).floats(2 * shape.head_dim);
    let (query_weight, key_weight) = norm_weights.split_at(shape.head_dim);
    let mut done = vec![0; sequences.len()];
    let mut outputs = vec![Vec::new(); sequences.len()];
    for rows in steps {
        let (mut query, mut key, mut value, mut positions) = (vec![], vec![], vec![], vec![]);
        let mut spans = Vec::new();
        for ((sequence, rows), done) in sequences.iter().zip(rows).zip(&done) {
            let range = |columns: usize| done * columns..(done + rows) * columns;
            query.extend(&sequence.query[range(query_columns)]);
            key.extend(&sequence.key[range(key_columns)]);
            value.extend(&sequence.value[range(key_columns)]);
            positions.extend(*done..done + rows);
            spans.push(SequenceSpan { first_position: *done, num_rows: *rows, block_table: &sequence.table });
        }
        let rope = RopeParams {
            style: shape.style,
            dim: shape.head_dim,
            base: 10_000.0,
            position_scale: 1.0,
            frequency_divisors: Vec::new(),
        };
        let table = RopeTable::new(&rope, positions.into_iter());
        let step = AttentionStep {
            layer: 1,
            params: AttentionParams { num_heads: shape.heads, scale: 0.3, window: shape.window },
            head_norm: shape.head_norm.then_some(HeadNorm { query_weight, key_weight, epsilon: 1e-6 }),
            rope: &table,
            spans: &spans,
        };
        let mut out = vec![f32::NAN; query.len()];
        f(pool, &step, &mut query, &mut key, &value, &mut out);
        let mut out = out.as_slice();
        for ((rows, done), outputs) in rows.iter().zip(&mut done).zip(&mut outputs) {
            let (own, rest) = out.split_at(rows * query_columns);
            outputs.extend_from_slice(own);
            out = rest;
            *done += rows;
        }
    }
    outputs
}

const SMOL: Shape = Shape {
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    window: None,
    style: RopeStyle::Interleaved,
    head_norm: false,
};
const GEMMA: Shape = Shape {
    heads: 4,
    kv_heads: 1,
    head_dim: 80,
    window: Some(37),
    style: RopeStyle::Halves,
    head_norm: true,
};
const WIDE: Shape = Shape { heads: 14, kv_heads: 1, head_dim: 32, window: Some(300), ..SMOL };

#[test]
fn outputs_are_close_to_the_reference() {
    for (shape, kv_type, tolerance) in [
        (SMOL, KvType::F32, 2e-5),
        (SMOL, KvType::F16, 2e-3),
        (GEMMA, KvType::F32, 2e-5),
        (WIDE, KvType::F32, 2e-5),
    ] {
        let sequences = [shape.sequence(330, 0, 1), shape.sequence(20, 21, 2)];
        let steps = [vec![300, 7], vec![29, 12], vec![1, 1]];
        let expected =
            run(shape, &mut shape.pool(KvType::F32, 23), &sequences, &steps, &reference::attention);
        for isa in Isa::available() {
            let cpu = Cpu::new(isa, 2);
            let mut pool = shape.pool(kv_type, 23);
            let actual = run(shape, &mut pool, &sequences, &steps, &|pool, step, q, k, v, out| {
                cpu.attention(pool, step, q, k, v, out);
            });
            for (actual, expected) in actual.iter().flatten().zip(expected.iter().flatten()) {
                assert!(
                    (actual - expected).abs() < tolerance,
                    "{isa:?} {kv_type:?}: {actual} for {expected}"
                );
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_instruction_set_threads_batch_or_chunks() {
    for shape in [SMOL, GEMMA, WIDE] {
        let lens = [530, 40, 17];
        let sequences =
            [shape.sequence(lens[0], 0, 1), shape.sequence(lens[1], 34, 2), shape.sequence(lens[2], 37, 3)];
        let on = |isa, threads, sequences: &[Sequence], steps: &[Vec<usize>]| {
            let cpu = Cpu::new(isa, threads);
            run(shape, &mut shape.pool(KvType::F16, 39), sequences, steps, &|pool, step, q, k, v, out| {
                cpu.attention(pool, step, q, k, v, out);
            })
        };
        let whole = on(Isa::Generic, 1, &sequences, &[lens.to_vec()]);
        let mut ragged = vec![vec![1, 16, 0], vec![255, 1, 16], vec![200, 3, 1], vec![62, 20, 0]];
        ragged.extend((0..12).map(|_| vec![1, 0, 0]));
        for isa in Isa::available() {
            for threads in [1, 2, 4] {
                assert!(on(isa, threads, &sequences, &[lens.to_vec()]) == whole, "{isa:?} {threads} whole");
                assert!(on(isa, threads, &sequences, &ragged) == whole, "{isa:?} {threads} ragged");
            }
        }
        let alone = on(Isa::detect(), 2, &sequences[..1], &[vec![500], vec![29], vec![1]]);
        assert!(alone[0] == whole[0], "alone");
    }
}

#[test]
#[should_panic(expected = "a page is written by one block of one sequence")]
fn two_sequences_cannot_write_one_page() {
    let sequences = [SMOL.sequence(4, 0, 1), SMOL.sequence(4, 0, 2)];
    let cpu = Cpu::new(Isa::detect(), 1);
    run(SMOL, &mut SMOL.pool(KvType::F16, 1), &sequences, &[vec![4, 4]], &|pool, step, q, k, v, out| {
        cpu.attention(pool, step, q, k, v, out);
    });
}
