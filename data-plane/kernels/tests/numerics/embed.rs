//! Embeddings of every kind of table.

use weir_kernels::cuda::ops::{ActivationType, StepRow, Weight};
use weir_kernels::quant::GgmlType;

use crate::matrix::Matrix;
use crate::random::Random;
use crate::support::{ACTIVATIONS, Fixture, SINGLE, assert_near, limits, step};

/// Tokens of the step: two rows, then what a launch for more tokens finds inactive.
const NUM_TOKENS: usize = 9;
const ACTIVE: usize = 6;
const VOCAB: usize = 37;

/// Ids beyond the vocabulary, at its edges, and (the last row) one that a seat sampled before.
const PROMPT: [u32; 5] = [0, 36, 37, u32::MAX, 5];
const LAST_TOKENS: [i32; 2] = [-1, 11];

fn check(fixture: &Fixture, activation: ActivationType, ggml_type: GgmlType, dim: usize) {
    let operations = fixture.operations(activation);
    let matrix = Matrix::random(&mut Random(dim as u64), activation, ggml_type, (VOCAB, dim));
    let scale = 1.7_f32;
    let hidden = fixture.in_every_order(|| {
        let device = &fixture.device;
        let table = Weight::load(device, activation, ggml_type, &matrix.bytes, (VOCAB, dim)).unwrap();
        let rows = [
            StepRow { seat: 0, start_position: 3, tokens: Some(&PROMPT) },
            StepRow { seat: 1, start_position: 20, tokens: None },
        ];
        let step = step(device, limits(NUM_TOKENS, 2), &rows, &[]);
        let last_token = device.buffer_of(&LAST_TOKENS).unwrap();
        let mut hidden = device.buffer_of(&[f32::NAN; NUM_TOKENS * 4160][..NUM_TOKENS * dim]).unwrap();
        operations.embed(&table, &step, NUM_TOKENS, &last_token, scale, &mut hidden).unwrap();
        device.read(&hidden).unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    for (token, row) in hidden.chunks_exact(dim).enumerate() {
        let id = if token < PROMPT.len() { PROMPT[token] as usize } else { LAST_TOKENS[1] as usize };
        for (i, &bits) in row.iter().enumerate() {
            let is_known = token < ACTIVE && id < VOCAB;
            let expected = if is_known { matrix.values[id * dim + i] * f64::from(scale) } else { 0.0 };
            // Single precision rounds the scale's product with the block's, that with the code, and the sum with the minimum: three
            // times, of parts that are at most four times as large as what they add up to here, or than 1.
            let tolerance = 3.0 * SINGLE * (4.0 * expected.abs()).max(if is_known { 1.0 } else { 0.0 });
            let what = format_args!("{ggml_type:?} {dim}, token {token}, {i}");
            assert_near(f64::from(f32::from_bits(bits)), expected, tolerance, what);
        }
    }
}

#[test]
fn embeddings_are_the_tables_rows() {
    let fixture = Fixture::new();
    for activation in ACTIVATIONS {
        // One block, an odd number of them, and more than the block's threads take at once.
        for dim in [32, 96, 4160] {
            check(&fixture, activation, Matrix::dense_type(activation), dim);
        }
    }
    for ggml_type in [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4_1] {
        for dim in [32, 96, 4160] {
            check(&fixture, ActivationType::Bf16, ggml_type, dim);
        }
    }
}
