//! The sampler against a sampler that sorts everything.

use super::noise::{RowNoise, gumbel};
use super::*;
use crate::sequence::SequenceId;
use crate::step::{Seat, SeatSetup};

/// The definition of correct: full sort, full softmax in double precision.
fn naive(logits: &[f32], params: &SamplingParams, position: u32) -> Option<TokenId> {
    let mut order: Vec<(f64, u32)> = logits
        .iter()
        .zip(0..)
        .filter(|(logit, _)| **logit > f32::NEG_INFINITY)
        .map(|(&logit, token)| (f64::from(logit), token))
        .collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let max = order.first()?.0;
    if params.temperature == 0.0 {
        return Some(order[0].1);
    }
    for entry in &mut order {
        entry.0 = (entry.0 - max) / f64::from(params.temperature);
    }
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let mass: f64 = order.iter().map(|entry| entry.0.exp()).sum();
    let mut cumulative = 0.0;
    let mut nucleus = order.len();
    for (index, entry) in order.iter().enumerate() {
        cumulative += entry.0.exp();
        if cumulative >= f64::from(params.top_p) * mass {
            nucleus = index + 1;
            break;
        }
    }
    order.truncate(nucleus);
    order.retain(|entry| entry.0.exp() >= f64::from(params.min_p));
    let noise = RowNoise::new(params.seed, position);
    order
        .into_iter()
        .map(|(score, token)| (score + gumbel(noise.bits(token)), token))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, token)| token)
}

/// Repeatable noise in [0, 1), so that a boundary case cannot come and go between runs.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 += 1;
        let bits = RowNoise::new(self.0, 0).bits(0);
        f32::from(u16::try_from(bits >> 48).unwrap()) / 65536.0
    }

    /// Roughly normal, as logits are.
    fn logit(&mut self) -> f32 {
        (0..6).map(|_| self.next()).sum::<f32>() * 4.0 - 12.0
    }
}

#[test]
fn equals_the_naive_sampler() {
    let mut random = Random(1);
    let mut sampler = Sampler::default();
    for case in 0..600 {
        let vocab = [1, 2, 63, 64, 65, 500, 5003][case % 7];
        let mut logits: Vec<f32> = (0..vocab).map(|_| random.logit()).collect();
        for _ in 0..vocab / 50 {
            let index = (random.next() * vocab as f32) as usize;
            logits[index] = if random.next() < 0.5 { f32::NAN } else { f32::NEG_INFINITY };
        }
        let params = SamplingParams {
            temperature: [0.0, 0.3, 1.0, 2.5][case / 7 % 4],
            top_k: [0, 1, 5, 40, 1000][case / 3 % 5],
            top_p: [1.0, 0.9, 0.5, 0.01, 0.999][case / 5 % 5],
            min_p: [0.0, 0.0, 0.05, 1.0][case / 11 % 4],
            seed: case as u64 * 77,
            ..SamplingParams::GREEDY
        };
        for position in [0, 1, 4_000_000_000] {
            let actual = sampler.sample(&logits, &params, position);
            assert_eq!(actual, naive(&logits, &params, position), "{case} {position} {params:?}");
        }
    }
}

#[test]
fn frequencies_follow_the_softmax() {
    let logits = [1.0_f32, 0.0, -1.0, 2.0, f32::NEG_INFINITY, -30.0];
    let params = SamplingParams { temperature: 1.3, seed: 9, ..SamplingParams::GREEDY };
    let mut sampler = Sampler::default();
    let mut counts = [0_u32; 6];
    let draws = 100_000;
    for position in 0..draws {
        counts[sampler.sample(&logits, &params, position).unwrap() as usize] += 1;
    }
    let mass: f64 = logits.iter().map(|logit| (f64::from(*logit) / 1.3).exp()).sum();
    for (logit, count) in logits.iter().zip(counts) {
        let expected = (f64::from(*logit) / 1.3).exp() / mass;
        let actual = f64::from(count) / f64::from(draws);
        assert!((actual - expected).abs() < 0.006, "{logit}: {actual} {expected}");
    }
}

#[test]
fn greedy_takes_the_lowest_id_of_a_tie_and_never_nan() {
    let mut sampler = Sampler::default();
    let mut logits = vec![0.5_f32; 200];
    logits[..3].fill(f32::NAN);
    logits[70] = 7.0;
    logits[150] = 7.0;
    assert_eq!(sampler.sample(&logits, &SamplingParams::GREEDY, 0), Some(70));
    let hot = SamplingParams { temperature: 0.7, seed: 3, ..SamplingParams::GREEDY };
    logits[9] = f32::INFINITY;
    assert_eq!(sampler.sample(&logits, &hot, 5), Some(9));
    for params in [SamplingParams::GREEDY, hot] {
        assert_eq!(sampler.sample(&[f32::NAN, f32::NEG_INFINITY], &params, 0), None);
        assert_eq!(sampler.sample(&[], &params, 0), None);
    }
}

#[test]
fn out_of_range_parameters_are_named() {
    let good = SamplingParams { temperature: 1.0, ..SamplingParams::GREEDY };
    assert_eq!(good.validate(), Ok(()));
    for temperature in [-0.1, f32::NAN, f32::INFINITY, 101.0] {
        assert_eq!(SamplingParams { temperature, ..good }.validate(), Err("temperature"));
    }
    for top_p in [0.0, -1.0, 1.1, f32::NAN] {
        assert_eq!(SamplingParams { top_p, ..good }.validate(), Err("top_p"));
    }
    for min_p in [-0.1, 1.1, f32::NAN] {
        assert_eq!(SamplingParams { min_p, ..good }.validate(), Err("min_p"));
    }
}

fn seat(
    sampling: SamplingParams,
    logit_bias: &[(TokenId, f32)],
    history: &[TokenId],
    prompt_tokens: u32,
) -> SeatState {
    SeatState::new(SeatSetup {
        seat: Seat(0),
        sequence: SequenceId(0),
        sampling,
        logit_bias: logit_bias.into(),
        history: history.to_vec(),
        prompt_tokens,
    })
}

#[test]
fn penalties_bias_and_mask_change_the_logits_in_that_order() {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        ..SamplingParams::GREEDY
    };
    // Prompt 0, 1; then 1, 2, 2 were generated.
    let mut seat = seat(params, &[(3, 10.0), (1, -1.0)], &[0, 1, 1, 2, 2], 2);
    let logits = [4.0, -4.0, 8.0, 1.0, 7.5];
    let mut adjusted = Vec::new();
    seat.adjust(&logits, None, &mut adjusted);
    // Repetition halves or doubles; then one and two times generated; then the bias.
    assert_eq!(adjusted, [2.0, -8.0 - 0.75 - 1.0, 4.0 - 1.25, 11.0, 7.5]);
    let without_three: TokenMask = vec![0b10111].into();
    seat.adjust(&logits, Some(&without_three), &mut adjusted);
    assert_eq!(adjusted[3], f32::NEG_INFINITY);
    let mut sampler = Sampler::default();
    let mut logprobs = Vec::new();
    let mut choose = |mask| sampler.sample_seat(&logits, &mut seat, mask, 5, &mut logprobs);
    assert_eq!(choose(None), Some(3));
    assert_eq!(choose(Some(&without_three)), Some(4));
    // 4 was chosen once now: 7.5 / 2 - 0.75 = 3.0, still the highest but for 3.
    assert_eq!(choose(Some(&without_three)), Some(4));
    // Twice: 3.75 - 1.25 = 2.5, and 2 has 2.75.
    assert_eq!(choose(Some(&without_three)), Some(2));
    assert!(logprobs.is_empty(), "nobody asked");
}

#[test]
fn logprobs_are_the_models_own_whatever_changed_the_choice() {
    let mut random = Random(7);
    let mut sampler = Sampler::default();
    for (vocab, top) in [(1, 20), (5, 0), (300, 3), (5000, 20)] {
        let mut logits: Vec<f32> = (0..vocab).map(|_| random.logit()).collect();
        if vocab > 1 {
            logits[1] = f32::NAN;
        }
        let params = SamplingParams { logprobs: Some(top), ..SamplingParams::GREEDY };
        let mut seat = seat(params, &[(0, 100.0)], &[], 0);
        let mut logprobs = Vec::new();
        assert_eq!(sampler.sample_seat(&logits, &mut seat, None, 9, &mut logprobs), Some(0));
        let finite = || logits.iter().copied().enumerate().filter(|(_, logit)| !logit.is_nan());
        let mass: f64 = finite().map(|(_, logit)| f64::from(logit).exp()).sum();
        let expected = |token: usize| (f64::from(logits[token]) - mass.ln()) as f32;
        let close = |a: f32, b: f32| (a - b).abs() < 1e-5;
        assert!(close(logprobs[0].chosen, expected(0)));
        let mut order: Vec<usize> = finite().map(|(token, _)| token).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        order.truncate(top as usize);
        let tokens: Vec<usize> = logprobs[0].top.iter().map(|(token, _)| *token as usize).collect();
        assert_eq!(tokens, order);
        assert!(logprobs[0].top.iter().all(|&(token, logprob)| close(logprob, expected(token as usize))));
    }
}

#[test]
fn each_new_parameter_has_its_range() {
    let good = SamplingParams::GREEDY;
    for repetition_penalty in [0.0, -1.0, f32::NAN, 101.0] {
        assert_eq!(SamplingParams { repetition_penalty, ..good }.validate(), Err("repetition_penalty"));
    }
    for penalty in [-2.1, 2.1, f32::NAN] {
        assert_eq!(
            SamplingParams { frequency_penalty: penalty, ..good }.validate(),
            Err("frequency_penalty")
        );
        assert_eq!(SamplingParams { presence_penalty: penalty, ..good }.validate(), Err("presence_penalty"));
    }
    assert_eq!(SamplingParams { logprobs: Some(21), ..good }.validate(), Err("logprobs"));
    assert_eq!(SamplingParams { logprobs: Some(20), ..good }.validate(), Ok(()));
}
