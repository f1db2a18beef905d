//! Rotary embedding, the norms of heads before it, and what is written to pages.

use weir_kernels::attention::{RopeParams, RopeStyle};
use weir_kernels::cuda::ops::{Formats, RopeParameters, StepRow};

use crate::paged::{Paged, all_formats};
use crate::random::Random;
use crate::support::{
    ACTIVATIONS, Fixture, SINGLE, activations, assert_near, kv_rounding, limits, rounding, step, values,
};

fn params(style: RopeStyle, dim: usize) -> RopeParams {
    let frequency_divisors = (0..dim / 2).map(|i| if i % 3 == 0 { 8.0 } else { 1.0 }).collect();
    RopeParams { style, dim, base: 10_000.0, position_scale: 0.25, frequency_divisors }
}

#[test]
fn the_table_holds_cosines_and_sines_of_every_token() {
    let fixture = Fixture::new();
    let operations = fixture.operations(ACTIVATIONS[0]);
    for dim in [2, 64, 260] {
        let params = params(RopeStyle::Halves, dim);
        let rows = [
            StepRow { seat: 1, start_position: 0, tokens: Some(&[0; 3]) },
            StepRow { seat: 0, start_position: 1000, tokens: None },
        ];
        let table = fixture.in_every_order(|| {
            let device = &fixture.device;
            let step = step(device, limits(5, 2), &rows, &[]);
            let rope = RopeParameters::load(device, &params).unwrap();
            let mut table = device.zeros(4 * dim).unwrap();
            operations.rope_table(&rope, &step, 4, &mut table).unwrap();
            device.read(&table).unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        for (at, bits) in table.into_iter().enumerate() {
            let (token, i) = (at / dim, at % dim / 2);
            let position = [0.0, 1.0, 2.0, 1000.0][token];
            let frequency = 10_000.0_f64.powf(-2.0 * i as f64 / dim as f64);
            let angle = position * 0.25 * frequency / f64::from(params.frequency_divisors[i]);
            let expected = if at % 2 == 0 { angle.cos() } else { angle.sin() };
            // The angle is made of a power, a reciprocal, a quotient and a product, each rounded; so is the result. The power's exponent is
            // rounded too, which the logarithm of the base (9.2) makes larger.
            let tolerance = SINGLE * (1.0 + 14.0 * angle);
            let got = f64::from(f32::from_bits(bits));
            assert_near(got, expected, tolerance, format_args!("{dim}: {token}, {i}"));
        }
    }
}

/// A step of four rows: within a block, across its end, over a whole one, and at its start; then a token that is not there.
const STARTS: [usize; 4] = [3, 14, 0, 32];
const LENGTHS: [usize; 4] = [1, 5, 17, 1];
const NUM_TOKENS: usize = 24;
/// Large enough to be seen beside the mean square.
const EPSILON: f32 = 0.5;

struct Case {
    paged: Paged,
    params: RopeParams,
    /// Of queries and of keys.
    norms: Option<[Vec<f32>; 2]>,
    qkv: Vec<u16>,
}

impl Case {
    fn new(formats: Formats, heads: (usize, usize), params: RopeParams, is_normalized: bool) -> Self {
        let mut random = Random(formats.head_dim as u64 + 7 * params.dim as u64);
        let contexts: Vec<usize> = STARTS.iter().zip(LENGTHS).map(|(start, length)| start + length).collect();
        let paged = Paged::new(&mut random, formats, heads, &contexts, limits(NUM_TOKENS + 1, 4));
        let all_heads = (NUM_TOKENS + 1) * (heads.0 + 2 * heads.1);
        let qkv = activations(&mut random, formats.activation, all_heads * formats.head_dim, 3.0);
        let norm = || random.floats_within(2.0, formats.head_dim);
        let norms = is_normalized.then_some(norm).map(|mut norm| [norm(), norm()]);
        Self { paged, params, norms, qkv }
    }

    /// The angles' table, the turned `qkv`, and the pool after it.
    fn run(&self, fixture: &Fixture) -> (Vec<u32>, Vec<u16>, Vec<u8>) {
        let operations = fixture.operations_for(self.paged.formats);
        let device = &fixture.device;
        let tokens = [0; 17];
        let row = |seat: usize| StepRow {
            seat,
            start_position: STARTS[seat],
            tokens: Some(&tokens[..LENGTHS[seat]]),
        };
        let (mut pages, step) =
            self.paged.load(&operations, self.paged.limits, &[row(0), row(1), row(2), row(3)], |_| 0);
        let rope = RopeParameters::load(device, &self.params).unwrap();
        let mut table = device.zeros((NUM_TOKENS + 1) * self.params.dim).unwrap();
        operations.rope_table(&rope, &step, NUM_TOKENS + 1, &mut table).unwrap();
        let mut qkv = device.buffer_of(&self.qkv).unwrap();
        let norms =
            self.norms.as_ref().map(|norms| norms.each_ref().map(|norm| device.buffer_of(norm).unwrap()));
        let head_norm = norms.as_ref().map(|norms| (&norms[0], &norms[1], EPSILON));
        let rope = (&rope, &table);
        let shape = self.paged.shape;
        operations.rope_store(shape, rope, head_norm, &step, NUM_TOKENS + 1, &mut qkv, &mut pages).unwrap();
        let table = device.read(&table).unwrap().into_iter().map(f32::to_bits).collect();
        (table, device.read(&qkv).unwrap(), self.paged.read(device, &pages))
    }

    /// A head after its norm and the turn by its token's angles, and the magnitude of what each component was made of.
    fn turned(&self, head: &[f64], norm: Option<&[f32]>, angles: &[f64]) -> Vec<(f64, f64)> {
        let mut head = head.to_vec();
        if let Some(norm) = norm {
            let squares: f64 = head.iter().map(|x| x * x).sum();
            let inverse = (squares / head.len() as f64 + f64::from(EPSILON)).sqrt().recip();
            head.iter_mut().zip(norm).for_each(|(x, norm)| *x *= inverse * f64::from(*norm));
        }
        let mut turned: Vec<(f64, f64)> = head.iter().map(|x| (*x, x.abs())).collect();
        let half = self.params.dim / 2;
        for i in 0..half {
            let (a, b) = match self.params.style {
                RopeStyle::Halves => (i, i + half),
                RopeStyle::Interleaved => (2 * i, 2 * i + 1),
            };
            let (cosine, sine) = (angles[2 * i], angles[2 * i + 1]);
            let magnitude = head[a].abs() + head[b].abs();
            turned[a] = (head[a] * cosine - head[b] * sine, magnitude);
            turned[b] = (head[b] * cosine + head[a] * sine, magnitude);
        }
        turned
    }

    fn check(&self, table: &[u32], qkv: &[u16], pool: &[u8]) {
        let Formats { activation, kv, head_dim } = self.paged.formats;
        let (num_heads, num_kv_heads) = (self.paged.shape.num_heads, self.paged.shape.num_kv_heads);
        let all_heads = num_heads + 2 * num_kv_heads;
        let angles: Vec<f64> = table.iter().map(|bits| f64::from(f32::from_bits(*bits))).collect();
        let (before, after) = (values(activation, &self.qkv), values(activation, qkv));
        // Every head that is written is taken out of this, and put in from the expectation.
        let mut untouched = self.paged.pool.clone();
        let tokens = (0..4).flat_map(|seat| (0..LENGTHS[seat]).map(move |i| (seat, STARTS[seat] + i)));
        for (token, (seat, position)) in tokens.enumerate() {
            let angles = &angles[token * self.params.dim..][..self.params.dim];
            for head in 0..all_heads {
                let at = (token * all_heads + head) * head_dim;
                let input = &before[at..at + head_dim];
                let (is_query, is_value) = (head < num_heads, head >= num_heads + num_kv_heads);
                let norm = self.norms.as_ref().map(|norms| &norms[usize::from(!is_query)][..]);
                let expected = if is_value {
                    input.iter().map(|x| (*x, x.abs())).collect()
                } else {
                    self.turned(input, norm, angles)
                };
                let got = if is_query {
                    after[at..at + head_dim].to_vec()
                } else {
                    assert_eq!(qkv[at..at + head_dim], self.qkv[at..at + head_dim], "keys and values stay");
                    let kv_head = (head - num_heads) % num_kv_heads;
                    let at = self.paged.head_at(seat, position, kv_head, is_value);
                    let bytes = at..at + head_dim * kv.bytes();
                    untouched[bytes.clone()].copy_from_slice(&pool[bytes]);
                    self.paged.head(pool, seat, position, kv_head, is_value)
                };
                for (i, (got, (expected, magnitude))) in got.into_iter().zip(expected).enumerate() {
                    // One rounding to the format it is kept in; the norm and the turn are a few of single precision.
                    let kept =
                        if is_query { rounding(activation, expected) } else { kv_rounding(kv, expected) };
                    let tolerance = kept + 8.0 * SINGLE * magnitude;
                    let what = format_args!("{:?}: {token}, head {head}, {i}", self.paged.formats);
                    assert_near(got, expected, tolerance, what);
                }
            }
        }
        assert!(untouched == pool, "only the step's slots are written");
        let tail = NUM_TOKENS * all_heads * head_dim;
        assert!(qkv[tail..] == self.qkv[tail..], "a token that is not there has no queries");
    }
}

#[test]
fn queries_are_turned_and_keys_and_values_are_written_to_their_pages() {
    let fixture = Fixture::new();
    let heads = [(2, 1), (3, 3), (4, 2), (1, 1)];
    for (i, formats) in all_formats().into_iter().enumerate() {
        let style = if i % 2 == 0 { RopeStyle::Halves } else { RopeStyle::Interleaved };
        // All components of a head; some; with an odd number of pairs.
        let dim = [formats.head_dim, formats.head_dim / 4, 22][i % 3];
        for is_normalized in [false, true] {
            let case = Case::new(formats, heads[i % heads.len()], params(style, dim), is_normalized);
            let (table, qkv, pool) = fixture.in_every_order(|| case.run(&fixture));
            case.check(&table, &qkv, &pool);
        }
    }
}

/// FP8 has no infinity: what is beyond ±448 is stored as that.
#[test]
fn fp8_saturates() {
    let fixture = Fixture::new();
    let formats = all_formats().into_iter().find(|formats| formats.kv.bytes() == 1).unwrap();
    let mut case = Case::new(formats, (1, 1), params(RopeStyle::Halves, 2), false);
    // The value of the first token: 448 is the largest number, and 464 lies half-way to what would be the next.
    let beyond = [447.0, 448.0, 449.0, 463.0, 464.0, 480.0, 1e6, f32::INFINITY, -1e6, f32::NAN];
    let value = 2 * formats.head_dim;
    for (i, x) in beyond.into_iter().enumerate() {
        case.qkv[value + i] = formats.activation.bits(x);
    }
    let (_, _, pool) = case.run(&fixture);
    let stored = case.paged.head(&pool, 0, STARTS[0], 0, true);
    assert!(
        stored[..8].iter().all(|x| *x == 448.0) && stored[8] == -448.0 && stored[9].is_nan(),
        "{stored:?}"
    );
}
