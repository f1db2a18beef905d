//! Attention over pages: rows with one token, longer ones, windows, and that both paths give the same bits.

use weir_kernels::cuda::ops::{AttentionScratch, Formats, StepLimits, StepRow};

use crate::paged::{BLOCK_TOKENS, Paged, all_formats};
use crate::random::Random;
use crate::support::{Fixture, SINGLE, activations, assert_near, limits, rounding, values};

/// Rows as (start, tokens): contexts of one position, around a block's end, around a split's, a long one; then chunks: a prompt's
/// start, and one across a split's end.
const ROWS: [(usize, usize); 10] =
    [(0, 1), (14, 1), (15, 1), (16, 1), (255, 1), (256, 1), (516, 1), (0, 33), (250, 9), (47, 1)];

/// Room for every split.
const SPLITS: usize = 16;

struct Case {
    paged: Paged,
    window: Option<usize>,
    scale: f32,
    rows: Vec<(usize, usize)>,
    qkv: Vec<u16>,
}

impl Case {
    fn new(formats: Formats, heads: (usize, usize), window: Option<usize>, rows: &[(usize, usize)]) -> Self {
        let mut random = Random(formats.head_dim as u64 + heads.0 as u64);
        let contexts: Vec<usize> = rows.iter().map(|(start, length)| start + length).collect();
        let tokens: usize = rows.iter().map(|row| row.1).sum();
        // As many rows as tokens, so that each token can also have a row of its own.
        let limits = StepLimits { splits: SPLITS, window, ..limits(tokens, tokens) };
        let paged = Paged::new(&mut random, formats, heads, &contexts, limits);
        let per_token = (heads.0 + 2 * heads.1) * formats.head_dim;
        let mut qkv = activations(&mut random, formats.activation, tokens * per_token, 4.0);
        // Keys and values are read from pages only.
        let nan = formats.activation.bits(f32::NAN);
        qkv.chunks_exact_mut(per_token).for_each(|token| token[heads.0 * formats.head_dim..].fill(nan));
        let scale = (formats.head_dim as f32).sqrt().recip();
        Self { paged, window, scale, rows: rows.to_vec(), qkv }
    }

    /// The result for the case's tokens, cut into these rows of (seat, start, tokens), with this room for splits.
    fn run(&self, fixture: &Fixture, rows: &[(usize, usize, usize)], splits: usize) -> Vec<u16> {
        let device = &fixture.device;
        let operations = fixture.operations_for(self.paged.formats);
        let shape = self.paged.shape;
        let limits = StepLimits { splits, ..self.paged.limits };
        let ids = [0; 64];
        let step_rows: Vec<StepRow<'_>> = rows
            .iter()
            .map(|&(seat, start_position, length)| StepRow {
                seat,
                start_position,
                tokens: Some(&ids[..length]),
            })
            .collect();
        let seen_from = |seat: usize| {
            self.window.map_or(0, |window| (self.rows[seat].0 + 1).saturating_sub(window) / BLOCK_TOKENS)
        };
        let (pages, step) = self.paged.load(&operations, limits, &step_rows, seen_from);
        let qkv = device.buffer_of(&self.qkv).unwrap();
        let out_len = limits.tokens * shape.num_heads * self.paged.formats.head_dim;
        let nan = self.paged.formats.activation.bits(f32::NAN);
        let mut out = device.buffer_of(&vec![nan; out_len]).unwrap();
        let mut scratch =
            AttentionScratch::new(device, splits, shape.num_heads, self.paged.formats.head_dim).unwrap();
        let size = (limits.rows, limits.tokens);
        let rules = (self.scale, self.window);
        let decode_only = step.is_split();
        operations
            .attention(shape, rules, &step, size, decode_only, &qkv, &pages, &mut scratch, &mut out)
            .unwrap();
        device.read(&out).unwrap()
    }

    /// The rows as they were given, a seat each.
    fn whole_rows(&self) -> Vec<(usize, usize, usize)> {
        self.rows.iter().enumerate().map(|(seat, &(start, length))| (seat, start, length)).collect()
    }

    fn check(&self, out: &[u16]) {
        let Formats { activation, head_dim, .. } = self.paged.formats;
        let (num_heads, num_kv_heads) = (self.paged.shape.num_heads, self.paged.shape.num_kv_heads);
        let (qkv, out) = (values(activation, &self.qkv), values(activation, out));
        let mut first_token = 0;
        for (seat, &(start, length)) in self.rows.iter().enumerate() {
            for kv_head in 0..num_kv_heads {
                // As the tensor cores see them: rounded to the activations' format.
                let read = |position: usize, is_value: bool| -> Vec<f64> {
                    let head = self.paged.head(&self.paged.pool, seat, position, kv_head, is_value);
                    head.into_iter().map(|x| f64::from(activation.value(activation.bits(x as f32)))).collect()
                };
                let keys: Vec<_> = (0..start + length).map(|position| read(position, false)).collect();
                let of_values: Vec<_> = (0..start + length).map(|position| read(position, true)).collect();
                let group = num_heads / num_kv_heads;
                for i in 0..length * group {
                    let (token, head) = (first_token + i / group, kv_head * group + i % group);
                    let end = start + i / group + 1;
                    let seen = self.window.map_or(0, |window| end.saturating_sub(window))..end;
                    let at = (token * (num_heads + 2 * num_kv_heads) + head) * head_dim;
                    let query = &qkv[at..at + head_dim];
                    let got = &out[(token * num_heads + head) * head_dim..][..head_dim];
                    self.check_head(query, &keys[seen.clone()], &of_values[seen], got);
                }
            }
            first_token += length;
        }
    }

    fn check_head(&self, query: &[f64], keys: &[Vec<f64>], of_values: &[Vec<f64>], got: &[f64]) {
        let activation = self.paged.formats.activation;
        let scale = f64::from(self.scale);
        let dot = |key: &Vec<f64>| query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() * scale;
        let scores: Vec<f64> = keys.iter().map(dot).collect();
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let magnitude: f64 = query.iter().map(|q| q.abs()).sum::<f64>() * scale;
        for (i, got) in got.iter().enumerate() {
            let value = |p: usize| of_values[p][i];
            let expected = (0..keys.len()).map(|p| weights[p] * value(p)).sum::<f64>() / sum;
            // Each weight is rounded to the activations' format, alike in the products and in their sum: it moves the result by at most
            // that part of its distance from it. Roundings go both ways, so that many come to the root of their squares.
            let squares: f64 = (0..keys.len()).map(|p| (weights[p] * (value(p) - expected)).powi(2)).sum();
            let of_weights = 4.0 * rounding(activation, 1.0) * squares.sqrt() / sum;
            // Scores and sums: a few roundings of single precision; those of the result to its own format.
            let of_sums = 8.0 * SINGLE * (magnitude + 1.0);
            let tolerance = of_weights + of_sums + rounding(activation, expected);
            let what = format_args!(
                "{:?}, {:?}, window {:?}, {} keys, {i}",
                self.paged.formats,
                self.paged.shape,
                self.window,
                keys.len()
            );
            assert_near(*got, expected, tolerance, what);
        }
    }
}

/// Every format and head size; 1, 2, 3, 4, 8 and more query heads for each KV head (with 32, every row takes prefill's path).
#[test]
fn attention_is_that_of_double_precision_and_has_the_same_bits_on_both_paths() {
    let fixture = Fixture::new();
    let heads = [(2, 2), (4, 2), (3, 1), (4, 1), (8, 1), (16, 1), (1, 1), (32, 1)];
    let windows = [None, Some(7), None, Some(40), None, Some(300)];
    for (i, formats) in all_formats().into_iter().enumerate() {
        let case = Case::new(formats, heads[i % heads.len()], windows[i / 2 % windows.len()], &ROWS);
        let rows = case.whole_rows();
        let out = fixture.in_every_order(|| case.run(&fixture, &rows, SPLITS));
        case.check(&out);
        let by_prefill = fixture.in_every_order(|| case.run(&fixture, &rows, 0));
        assert!(by_prefill == out, "other bits by prefill: {formats:?}");
    }
}

#[test]
fn attention_of_random_rows() {
    let fixture = Fixture::new();
    let mut random = Random(2);
    for formats in all_formats() {
        let num_kv_heads = 1 + random.below(2);
        let heads = (num_kv_heads * (1 + random.below(6)), num_kv_heads);
        let window = (random.below(2) == 0).then(|| 1 + random.below(150));
        let rows: Vec<(usize, usize)> =
            (0..4).map(|i| (random.below(300), 1 + i * random.below(12))).collect();
        let case = Case::new(formats, heads, window, &rows);
        let out = case.run(&fixture, &case.whole_rows(), SPLITS);
        case.check(&out);
        assert!(case.run(&fixture, &case.whole_rows(), 0) == out, "other bits by prefill: {formats:?}");
    }
}

/// Keys that come later in the step, the cut into chunks, and the path leave a token's bits as they are.
#[test]
fn a_tokens_bits_do_not_depend_on_how_its_prompt_is_cut() {
    let fixture = Fixture::new();
    for (i, formats) in all_formats().into_iter().enumerate() {
        let window = [None, Some(100)][i % 2];
        let case = Case::new(formats, [(4, 1), (3, 3), (2, 1)][i % 3], window, &[(248, 14), (0, 5)]);
        let whole = case.run(&fixture, &case.whole_rows(), SPLITS);
        case.check(&whole);
        let chunked =
            case.run(&fixture, &[(0, 248, 7), (0, 255, 1), (0, 256, 6), (1, 0, 4), (1, 4, 1)], SPLITS);
        assert!(chunked == whole, "in chunks: {formats:?}");
        let mut one_by_one: Vec<_> = (248..262).map(|position| (0, position, 1)).collect();
        one_by_one.extend((0..5).map(|position| (1, position, 1)));
        // Room for some of them: the others take prefill's path.
        for splits in [9, 40] {
            assert!(case.run(&fixture, &one_by_one, splits) == whole, "one by one: {formats:?}");
        }
    }
}
