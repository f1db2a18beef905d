//! Log-probabilities of sampled tokens and of the likeliest.

use weir_kernels::cuda::ops::{SeatParameters, SeatTables, StepRow, StepSample, TOP_LOGPROBS_MAX};

use crate::random::Random;
use crate::sampling::NEUTRAL;
use crate::support::{ACTIVATIONS, Fixture, SINGLE, assert_near, limits, step};

const GREEDY: SeatParameters = SeatParameters { inverse_temperature: 0.0, ..NEUTRAL };

/// How many alternatives each sample's seat wants.
const WANTED: [Option<usize>; 5] = [Some(0), Some(3), None, Some(TOP_LOGPROBS_MAX), Some(5)];
const NUM_SAMPLES: usize = WANTED.len();
const PER_SAMPLE: usize = 1 + TOP_LOGPROBS_MAX;

/// The sampled tokens, then the log-probabilities' bits and the alternatives. A bias makes each seat choose token 1, if there
/// is one, whatever its logit: log-probabilities are under the model's own logits.
fn run(fixture: &Fixture, vocab_size: usize, logits: &[f32]) -> (Vec<i32>, Vec<u32>, Vec<i32>) {
    let device = &fixture.device;
    let operations = fixture.operations(ACTIVATIONS[0]);
    let mut tables = SeatTables::new(device, vocab_size, (NUM_SAMPLES, NUM_SAMPLES), (0, 1), 1).unwrap();
    let bias: &[(u32, f32)] = if vocab_size > 1 { &[(1, 100.0)] } else { &[] };
    for (seat, top_logprobs) in WANTED.into_iter().enumerate() {
        let parameters = SeatParameters { top_logprobs, ..GREEDY };
        operations.set_seat(&mut tables, seat, &parameters, bias, (&[], 0)).unwrap();
    }
    let rows: Vec<StepRow<'_>> =
        (0..NUM_SAMPLES).map(|seat| StepRow { seat, start_position: 2, tokens: None }).collect();
    let samples: Vec<StepSample> = (0..NUM_SAMPLES).map(|row| StepSample { row, mask: None }).collect();
    let step = step(device, limits(NUM_SAMPLES, NUM_SAMPLES), &rows, &samples);
    let logits = device.buffer_of(logits).unwrap();
    operations.sample(&logits, &step, 0..NUM_SAMPLES, &mut tables).unwrap();
    operations.logprobs(&logits, &step, 0..2, &mut tables).unwrap();
    operations.logprobs(&logits, &step, 2..NUM_SAMPLES, &mut tables).unwrap();
    let (logprobs, tokens) = tables.logprobs();
    let logprobs = device.read(logprobs).unwrap().into_iter().map(f32::to_bits).collect();
    (device.read(tables.sampled()).unwrap(), logprobs, device.read(tokens).unwrap())
}

#[test]
fn log_probabilities_are_those_of_double_precision() {
    let fixture = Fixture::new();
    for vocab_size in [1, 8, 1500] {
        let mut logits = Random(vocab_size as u64).floats_within(12.0, NUM_SAMPLES * vocab_size);
        if vocab_size > 8 {
            // Equal ones, of which the lower id comes first; what has no probability; what is no number.
            for row in logits.chunks_exact_mut(vocab_size) {
                (row[700], row[30], row[31], row[40], row[1200]) =
                    (13.0, 13.0, 13.0, f32::NAN, f32::NEG_INFINITY);
            }
        }
        let (sampled, logprobs, tokens) = fixture.in_every_order(|| run(&fixture, vocab_size, &logits));
        for (sample, top) in WANTED.into_iter().enumerate() {
            let row = &logits[sample * vocab_size..][..vocab_size];
            let numbers = || row.iter().map(|logit| f64::from(*logit)).filter(|logit| !logit.is_nan());
            let highest = numbers().fold(f64::NEG_INFINITY, f64::max);
            let log_mass = highest + numbers().map(|logit| (logit - highest).exp()).sum::<f64>().ln();
            let logprobs = &logprobs[sample * PER_SAMPLE..][..PER_SAMPLE];
            let check = |bits: u32, token: usize| {
                let expected = f64::from(row[token]) - log_mass;
                // Differences of logits are rounded once, and the result once.
                let tolerance = SINGLE * (expected.abs() + 4.0);
                assert_near(
                    f64::from(f32::from_bits(bits)),
                    expected,
                    tolerance,
                    format_args!("{sample}, {token}"),
                );
            };
            let Some(top) = top else {
                assert!(logprobs.iter().all(|bits| *bits == 0), "nothing is written where nothing is asked");
                continue;
            };
            let chosen = usize::from(vocab_size > 1);
            assert_eq!(sampled[sample], chosen as i32);
            check(logprobs[0], chosen);
            let mut order: Vec<usize> = (0..vocab_size).filter(|token| !row[*token].is_nan()).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
            let tokens = &tokens[sample * TOP_LOGPROBS_MAX..][..top];
            for (i, &token) in tokens.iter().enumerate() {
                let Some(&expected) = order.get(i) else {
                    assert_eq!((token, f32::from_bits(logprobs[1 + i])), (-1, f32::NEG_INFINITY));
                    continue;
                };
                assert_eq!(token, expected as i32, "place {i} of sample {sample}");
                check(logprobs[1 + i], expected);
            }
        }
    }
}
