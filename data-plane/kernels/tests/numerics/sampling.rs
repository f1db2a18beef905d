//! The choice of tokens: every filter and penalty against a sampler in double precision, ties, and the distribution.

use weir_kernels::cuda::ops::{SeatParameters, SeatTables, StepRow, StepSample};

use crate::random::Random;
use crate::sampler::Seat;
use crate::support::{ACTIVATIONS, Fixture, limits, step};

/// Draws from the model's own distribution.
pub(crate) const NEUTRAL: SeatParameters = SeatParameters {
    seed: 0,
    inverse_temperature: 1.0,
    top_p: 1.0,
    min_score: f32::NEG_INFINITY,
    top_k: 0,
    repetition_penalty: 1.0,
    frequency_penalty: 0.0,
    presence_penalty: 0.0,
    count_slot: None,
    top_logprobs: None,
};

/// A sample for each seat, in another order than theirs, of one step.
struct Case {
    vocab_size: usize,
    seats: Vec<Seat>,
    positions: Vec<usize>,
    /// Seat of each sample.
    order: Vec<usize>,
    /// `[samples, vocab_size]`.
    logits: Vec<f32>,
    masks: Vec<Vec<u32>>,
    /// Of each sample.
    mask_of: Vec<Option<usize>>,
}

fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len())]
}

/// `likely`: the tokens whose penalties and bias decide.
fn random_seat(random: &mut Random, slot: usize, vocab_size: usize, likely: &[usize]) -> Seat {
    let vocab = u32::try_from(vocab_size).unwrap();
    let is_penalized = random.below(3) > 0;
    let token = |random: &mut Random| {
        if random.below(2) == 0 { pick(random, likely) as u32 } else { random.below(vocab_size) as u32 }
    };
    let history: Vec<u32> = (0..random.below(16)).map(|_| token(random)).collect();
    let prompt_tokens = random.below(history.len() + 1);
    let num_bias = if random.below(3) == 0 { random.below(vocab_size.min(30)) } else { 0 };
    let mut biased: Vec<usize> = random.permutation(vocab_size);
    biased.sort_by_key(|token| !likely[..likely.len() / 2].contains(token));
    let bias = biased[..num_bias].iter().map(|token| (*token as u32, 6.0 * random.unit())).collect();
    let parameters = SeatParameters {
        seed: random.next(),
        inverse_temperature: pick(random, &[0.0, 1.0, 1.0 / 0.7, 1.0 / 1.6, 10.0]),
        top_p: pick(random, &[1.0, 0.95, 0.5, 0.02]),
        min_score: pick(random, &[f32::NEG_INFINITY, 0.05_f32.ln(), 0.4_f32.ln()]),
        top_k: pick(random, &[0, 1, 3, 40, vocab, vocab + 7, u32::MAX]),
        repetition_penalty: pick(random, &[1.0, 1.3, 0.8]),
        frequency_penalty: pick(random, &[0.0, 0.4, -0.3]),
        presence_penalty: pick(random, &[0.0, 0.9, -0.5]),
        count_slot: is_penalized.then_some(slot),
        top_logprobs: None,
    };
    Seat { parameters, bias, history, prompt_tokens }
}

impl Case {
    fn random(seed: u64, num_seats: usize, vocab_size: usize) -> Self {
        let mut random = Random(seed);
        let positions = (0..num_seats).map(|_| 1 + random.below(1000)).collect();
        let order = random.permutation(num_seats);
        let mut logits = random.floats_within(9.0, num_seats * vocab_size);
        // What cannot be chosen, or what must not win by being compared.
        for _ in 0..logits.len() / 10 {
            let at = random.below(logits.len());
            logits[at] = pick(&mut random, &[f32::NEG_INFINITY, f32::NAN, -f32::NAN, -1e30]);
        }
        let seat = |slot| {
            let sample = order.iter().position(|seat| *seat == slot).unwrap();
            let row = &logits[sample * vocab_size..][..vocab_size];
            let mut likely: Vec<usize> = (0..vocab_size).filter(|token| row[*token] > -9.0).collect();
            likely.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
            likely.truncate(8);
            likely.push(0);
            random_seat(&mut random, slot, vocab_size, &likely)
        };
        let seats = (0..num_seats).map(seat).collect();
        let mask = |random: &mut Random| (0..vocab_size.div_ceil(32)).map(|_| random.next() as u32).collect();
        let masks = vec![mask(&mut random), mask(&mut random)];
        let mask_of = (0..num_seats).map(|_| pick(&mut random, &[None, Some(0), Some(1)])).collect();
        Self { vocab_size, seats, positions, order, logits, masks, mask_of }
    }

    fn sample_logits(&self, sample: usize) -> &[f32] {
        &self.logits[sample * self.vocab_size..][..self.vocab_size]
    }

    /// The tokens of some steps with the same logits, a position further each: seats remember what they were given. Also what each
    /// seat was given last.
    fn run(&self, fixture: &Fixture, steps: usize) -> Vec<(Vec<i32>, Vec<i32>)> {
        let device = &fixture.device;
        let operations = fixture.operations(ACTIVATIONS[0]);
        let count = self.seats.len();
        let mut tables =
            SeatTables::new(device, self.vocab_size, (count, count), (count, 64), steps).unwrap();
        for (index, seat) in self.seats.iter().enumerate() {
            let history = (&seat.history[..], seat.prompt_tokens);
            operations.set_seat(&mut tables, index, &seat.parameters, &seat.bias, history).unwrap();
        }
        let masks: Vec<&[u32]> = self.masks.iter().map(|mask| &mask[..]).collect();
        let logits = device.buffer_of(&self.logits).unwrap();
        let run_step = |i: usize| {
            let row =
                |seat: usize| StepRow { seat, start_position: self.positions[seat] + i - 1, tokens: None };
            let rows: Vec<StepRow<'_>> = (0..count).map(row).collect();
            let samples: Vec<StepSample> = self
                .order
                .iter()
                .zip(&self.mask_of)
                .map(|(row, mask)| StepSample { row: *row, mask: *mask })
                .collect();
            let step = step(device, limits(count, count), &rows, &samples);
            tables.set_masks(device, &masks).unwrap();
            // Some of the samples first, as where masks come late.
            let first = count / 3;
            operations.sample(&logits, &step, 0..first, &mut tables).unwrap();
            operations.sample(&logits, &step, first..count, &mut tables).unwrap();
            (device.read(tables.sampled()).unwrap(), device.read(tables.last_token()).unwrap())
        };
        (0..steps).map(run_step).collect()
    }
}

/// Asserts what is clear, and that most of it is.
#[test]
fn tokens_are_those_of_double_precision() {
    let fixture = Fixture::new();
    let (mut clear, mut all) = (0, 0);
    for (seed, (num_seats, vocab_size)) in [(6, 1), (24, 31), (30, 1000), (10, 3001)].into_iter().enumerate()
    {
        let case = Case::random(seed as u64, num_seats, vocab_size);
        let steps = fixture.in_every_order(|| case.run(&fixture, 2));
        let mut seats = case.seats.clone();
        let mut last = vec![0; num_seats];
        for (i, (sampled, last_token)) in steps.into_iter().enumerate() {
            for (sample, &seat) in case.order.iter().enumerate() {
                let mask = case.mask_of[sample].map(|mask| &case.masks[mask][..]);
                let position = case.positions[seat] + i;
                all += 1;
                if let Ok(token) = seats[seat].choose(case.sample_logits(sample), mask, position) {
                    let expected = token.map_or(-1, |token| token as i32);
                    assert_eq!(sampled[sample], expected, "{:?}, position {position}", seats[seat]);
                    clear += 1;
                }
                // From here on by what was chosen.
                if let Ok(token) = u32::try_from(sampled[sample]) {
                    seats[seat].history.push(token);
                    last[seat] = sampled[sample];
                }
            }
            assert_eq!(last_token, last);
        }
    }
    assert!(clear * 100 > all * 95, "{clear} of {all} are clear");
}

/// The tokens of samples with these parameters and logits, a seat each.
fn choose(fixture: &Fixture, vocab_size: usize, samples: &[(SeatParameters, Vec<f32>)]) -> Vec<i32> {
    let seat = |parameters| Seat { parameters, bias: Vec::new(), history: Vec::new(), prompt_tokens: 0 };
    let case = Case {
        vocab_size,
        seats: samples.iter().map(|sample| seat(sample.0)).collect(),
        positions: vec![5; samples.len()],
        order: (0..samples.len()).collect(),
        logits: samples.iter().flat_map(|sample| sample.1.clone()).collect(),
        masks: Vec::new(),
        mask_of: vec![None; samples.len()],
    };
    fixture.in_every_order(|| case.run(fixture, 1)).remove(0).0
}

#[test]
fn of_equal_tokens_the_lower_ids_are_kept() {
    let fixture = Fixture::new();
    let vocab_size = 2500;
    let greedy = SeatParameters { inverse_temperature: 0.0, ..NEUTRAL };
    let logits = |high: &[(usize, f32)]| {
        let mut logits = vec![-1.0_f32; vocab_size];
        high.iter().for_each(|(token, logit)| logits[*token] = *logit);
        logits
    };
    let three = logits(&[(2001, 2.0), (77, 2.0), (1100, 2.0)]);
    // Whatever the noise: one token alone passes top-k, or has the mass that is asked for.
    let mut samples = vec![
        (greedy, three.clone()),
        (SeatParameters { top_k: 1, ..NEUTRAL }, three.clone()),
        (SeatParameters { top_p: 1e-6, ..NEUTRAL }, three.clone()),
        (greedy, logits(&[(9, f32::INFINITY), (8, f32::INFINITY)])),
        (NEUTRAL, logits(&[(9, f32::INFINITY), (1999, f32::NAN)])),
        (NEUTRAL, vec![f32::NEG_INFINITY; vocab_size]),
        (greedy, vec![f32::NAN; vocab_size]),
        (greedy, logits(&[(4, 0.0), (3, -0.0)])),
    ];
    // Zeros of both signs are one number to the filters too: they tie for the second place of top-k.
    let zeros = logits(&[(10, 1.0), (12, -0.0), (11, 0.0)]);
    samples.extend((0..40).map(|seed| (SeatParameters { seed, top_k: 2, ..NEUTRAL }, zeros.clone())));
    let tokens = choose(&fixture, vocab_size, &samples);
    assert_eq!(tokens[..8], [77, 77, 77, 8, 9, -1, -1, 3]);
    assert!(tokens[8..].contains(&10) && tokens[8..].contains(&11));
    assert!(tokens[8..].iter().all(|token| [10, 11].contains(token)), "{tokens:?}");
}

/// The shortest head of the order that reaches the mass, to a thousandth of it.
#[test]
fn a_nucleus_ends_where_its_mass_is_reached() {
    let fixture = Fixture::new();
    let logits: Vec<f32> = [0.2_f32, 0.5, 0.3].iter().map(|probability| probability.ln()).collect();
    let with = |top_p| (0..40).map(move |seed| SeatParameters { seed, top_p, ..NEUTRAL });
    let samples: Vec<_> =
        with(0.799).chain(with(0.801)).map(|parameters| (parameters, logits.clone())).collect();
    let tokens = choose(&fixture, 3, &samples);
    assert!(!tokens[..40].contains(&0) && tokens[40..].contains(&0), "{tokens:?}");
}

#[test]
fn noise_is_of_seed_and_position_alone() {
    let fixture = Fixture::new();
    let logits = Random(8).floats_within(0.5, 900);
    let with_seed = |seed| (SeatParameters { seed, ..NEUTRAL }, logits.clone());
    let few = choose(&fixture, 900, &[with_seed(3), with_seed(4)]);
    let many = choose(&fixture, 900, &[with_seed(4), with_seed(5), with_seed(3), with_seed(3)]);
    assert_eq!((many[2], many[3], many[0]), (few[0], few[0], few[1]));
    assert!(few[0] != few[1] && many[1] != few[0], "of 900 nearly equal tokens");
}

/// Pearson's statistic of what is drawn by many seeds at some positions.
#[test]
fn tokens_are_drawn_by_their_probabilities() {
    let fixture = Fixture::new();
    let device = &fixture.device;
    let operations = fixture.operations(ACTIVATIONS[0]);
    let logits = [1.0_f32, -0.5, 0.25, f32::NEG_INFINITY, 0.0, 1.5, -1.0, 0.5];
    let (num_seats, steps) = (96, 10);
    let mut tables = SeatTables::new(device, 8, (num_seats, num_seats), (0, 1), steps).unwrap();
    for seat in 0..num_seats {
        let parameters = SeatParameters { seed: seat as u64, inverse_temperature: 0.8, ..NEUTRAL };
        operations.set_seat(&mut tables, seat, &parameters, &[], (&[], 0)).unwrap();
    }
    let on_device = device.buffer_of(&logits.repeat(num_seats)).unwrap();
    let mut drawn = [0.0; 8];
    for i in 0..steps {
        let row = |seat| StepRow { seat, start_position: i, tokens: None };
        let rows: Vec<StepRow<'_>> = (0..num_seats).map(row).collect();
        let samples: Vec<StepSample> = (0..num_seats).map(|row| StepSample { row, mask: None }).collect();
        let step = step(device, limits(num_seats, num_seats), &rows, &samples);
        operations.sample(&on_device, &step, 0..num_seats, &mut tables).unwrap();
        for token in device.read(tables.sampled()).unwrap() {
            drawn[usize::try_from(token).unwrap()] += 1.0;
        }
    }
    let weights = logits.map(|logit| (f64::from(logit) * 0.8).exp());
    let sum: f64 = weights.iter().sum();
    let mut statistic = 0.0;
    for (drawn, weight) in drawn.into_iter().zip(weights) {
        let expected = (num_seats * steps) as f64 * weight / sum;
        assert!(expected > 0.0 || drawn == 0.0, "a token that cannot be drawn was");
        statistic += if expected > 0.0 { (drawn - expected) * (drawn - expected) / expected } else { 0.0 };
    }
    // Six degrees of freedom: one seed in a thousand is beyond 22.5.
    assert!(statistic < 22.5, "{statistic}: {drawn:?}");
}
