//! Log-probabilities under the model's own distribution.

use crate::sequence::TokenId;
use crate::step::TokenLogprobs;

/// Of `token`, and of the `top` likeliest tokens; logits that are not a number are passed over.
pub(super) fn of(logits: &[f32], token: TokenId, top: u32) -> TokenLogprobs {
    let is_greater = |a: f32, b: f32| a > b;
    let mut likeliest: Vec<(TokenId, f32)> = Vec::with_capacity(top as usize + 1);
    let mut max = f32::NEG_INFINITY;
    for (&logit, token) in logits.iter().zip(0..) {
        if is_greater(logit, max) {
            max = logit;
        }
        let is_full = likeliest.len() == top as usize;
        if logit.is_nan()
            || likeliest.last().is_some_and(|last| is_full && !is_greater(logit, last.1))
            || top == 0
        {
            continue;
        }
        let place = likeliest.partition_point(|&(_, other)| !is_greater(logit, other));
        likeliest.insert(place, (token, logit));
        likeliest.truncate(top as usize);
    }
    let mass: f64 =
        logits.iter().filter(|logit| !logit.is_nan()).map(|logit| f64::from(logit - max).exp()).sum();
    let log_mass = f64::from(max) + mass.ln();
    #[expect(clippy::cast_possible_truncation, reason = "single precision is what is asked for")]
    let logprob = |logit: f32| (f64::from(logit) - log_mass) as f32;
    TokenLogprobs {
        chosen: logits.get(token as usize).map_or(f32::NEG_INFINITY, |logit| logprob(*logit)),
        top: likeliest.into_iter().map(|(token, logit)| (token, logprob(logit))).collect(),
    }
}
