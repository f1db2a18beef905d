//! How the next token is chosen from logits.
//!
//! A pure function of (logits, seat, absolute position): penalties, then logit bias, then the mask, then temperature,
//! top-k, top-p, min-p, then the Gumbel-max trick over what is left. The noise of a token is a hash of (seed, position, token), so a
//! request's tokens depend on nothing else in the batch, and a draft model that shares the seed draws the same
//! noise. Nothing here sorts a whole vocabulary: per-chunk maxima tell which few chunks can matter.

mod candidates;
mod logprobs;
pub(crate) mod noise;
mod seat;

pub(crate) use seat::SeatState;

use crate::sequence::TokenId;
use crate::step::{TokenLogprobs, TokenMask};
use candidates::Candidates;
use noise::RowNoise;

/// What a request asks of the sampler. Plain data, checked by [`SamplingParams::validate`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 means greedy: the highest logit, the lowest id on a tie.
    pub temperature: f32,
    /// Keeps the smallest set of most likely tokens whose probabilities add up to this; 1 keeps all.
    pub top_p: f32,
    /// Keeps this many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps tokens at least this fraction as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Noise is a pure function of this and the token's absolute position.
    pub seed: u64,
    /// Divides the logit of each token of the prompt or the answer if it is positive, multiplies it else; 1 for none
    /// (CTRL, Keskar et al. 2019).
    pub repetition_penalty: f32,
    /// Taken from the logit of a token for each time it was generated, as OpenAI's API has it.
    pub frequency_penalty: f32,
    /// Taken once from the logit of each token that was generated.
    pub presence_penalty: f32,
    /// Report the log-probability of each token, and of this many of the likeliest beside it.
    pub logprobs: Option<u32>,
}

/// Most alternatives that [`SamplingParams::logprobs`] may ask for, as OpenAI's API has it.
pub const TOP_LOGPROBS_MAX: u32 = 20;
/// Most tokens of a logit bias, as OpenAI's API has it.
pub const LOGIT_BIAS_MAX: usize = 1024;

/// Below this the division would lose the logits' order to overflow; taken as greedy.
const TEMPERATURE_MIN: f32 = 1e-5;
/// Above this every distribution over a vocabulary is uniform to within noise.
const TEMPERATURE_MAX: f32 = 100.0;

impl SamplingParams {
    /// The highest logit, always.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        seed: 0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        logprobs: None,
    };

    /// True if the tokens so far change the logits.
    pub fn penalizes(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// True if no noise is used.
    pub fn is_greedy(&self) -> bool {
        self.temperature < TEMPERATURE_MIN
    }

    /// # Errors
    /// The name of the first parameter that is out of range or not a number.
    pub fn validate(&self) -> Result<(), &'static str> {
        if !(0.0..=TEMPERATURE_MAX).contains(&self.temperature) {
            return Err("temperature");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err("top_p");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return Err("min_p");
        }
        if !(0.01..=100.0).contains(&self.repetition_penalty) {
            return Err("repetition_penalty");
        }
        for (name, penalty) in
            [("frequency_penalty", self.frequency_penalty), ("presence_penalty", self.presence_penalty)]
        {
            if !(-2.0..=2.0).contains(&penalty) {
                return Err(name);
            }
        }
        if self.logprobs.is_some_and(|top| top > TOP_LOGPROBS_MAX) {
            return Err("logprobs");
        }
        Ok(())
    }
}

/// Chooses tokens. Holds scratch memory only: one for each thread, reused over rows and steps.
#[derive(Debug, Default)]
pub struct Sampler {
    candidates: Candidates,
    adjusted: Vec<f32>,
}

impl Sampler {
    /// Chooses the token at absolute `position` for a seat, from those that the mask allows, and remembers it there.
    /// `logits` are the model's own, `[vocab_size]`; log-probabilities are pushed to `logprobs` if the seat asks for them.
    pub(crate) fn sample_seat(
        &mut self,
        logits: &[f32],
        seat: &mut SeatState,
        mask: Option<&TokenMask>,
        position: u32,
        logprobs: &mut Vec<TokenLogprobs>,
    ) -> Option<TokenId> {
        let params = *seat.params();
        let token = if seat.changes_logits() || mask.is_some() {
            let mut adjusted = std::mem::take(&mut self.adjusted);
            seat.adjust(logits, mask, &mut adjusted);
            let token = self.sample(&adjusted, &params, position);
            self.adjusted = adjusted;
            token
        } else {
            self.sample(logits, &params, position)
        }?;
        if let Some(top) = params.logprobs {
            logprobs.push(logprobs::of(logits, token, top));
        }
        seat.take(token);
        Some(token)
    }

    /// Chooses the token at absolute `position` from `logits` (`[vocab_size]`). `None` if no logit is a number
    /// above negative infinity; logits that are not a number are never chosen.
    ///
    /// Cost: one pass for greedy; two to four cheap passes over the vocabulary otherwise.
    pub fn sample(&mut self, logits: &[f32], params: &SamplingParams, position: u32) -> Option<TokenId> {
        let max = self.candidates.scan(logits);
        if max == f32::NEG_INFINITY {
            return None;
        }
        if params.is_greedy() || max == f32::INFINITY {
            return self.candidates.first_of_max(logits);
        }
        let noise = RowNoise::new(params.seed, position);
        let inverse_temperature = params.temperature.recip();
        let min_score = if params.min_p > 0.0 { params.min_p.ln() } else { f32::NEG_INFINITY };
        if params.top_k == 0 && params.top_p >= 1.0 {
            self.candidates.gumbel_max_of_all(logits, inverse_temperature, min_score, noise)
        } else {
            self.candidates.filter(logits, inverse_temperature, params.top_k, params.top_p);
            self.candidates.gumbel_max_of_filtered(min_score, noise)
        }
    }
}

#[cfg(test)]
mod tests;
