//! What the sampler keeps for a running sequence, and what that does to its logits.

use std::collections::HashMap;
use std::sync::Arc;

use super::SamplingParams;
use crate::sequence::TokenId;
use crate::step::{SeatSetup, TokenMask};

/// One seat of an executor that samples on the host.
#[derive(Clone, Debug)]
pub(crate) struct SeatState {
    params: SamplingParams,
    logit_bias: Arc<[(TokenId, f32)]>,
    /// How often each token of the prompt or the answer was generated; empty if nothing is penalised.
    generated: HashMap<TokenId, u32>,
    last: Option<TokenId>,
}

impl SeatState {
    pub(crate) fn new(setup: SeatSetup) -> Self {
        let mut generated = HashMap::new();
        if setup.sampling.penalizes() {
            let prompt_tokens = (setup.prompt_tokens as usize).min(setup.history.len());
            let (prompt, answer) = setup.history.split_at(prompt_tokens);
            generated.extend(prompt.iter().map(|&token| (token, 0)));
            for &token in answer {
                *generated.entry(token).or_default() += 1;
            }
        }
        Self { params: setup.sampling, logit_bias: setup.logit_bias, generated, last: None }
    }

    pub(crate) fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The token sampled last, if any was since the sequence took its seat.
    pub(crate) fn last(&self) -> Option<TokenId> {
        self.last
    }

    pub(super) fn changes_logits(&self) -> bool {
        !self.generated.is_empty() || !self.logit_bias.is_empty()
    }

    /// Penalties, then bias, then mask, into `out`.
    pub(super) fn adjust(&self, logits: &[f32], mask: Option<&TokenMask>, out: &mut Vec<f32>) {
        out.clear();
        out.extend_from_slice(logits);
        let SamplingParams { repetition_penalty, frequency_penalty, presence_penalty, .. } = self.params;
        for (&token, &count) in &self.generated {
            let Some(logit) = out.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            if count > 0 {
                #[expect(clippy::cast_precision_loss, reason = "an answer is far shorter than 2^24 tokens")]
                let count = count as f32;
                *logit -= count * frequency_penalty + presence_penalty;
            }
        }
        for &(token, bias) in &*self.logit_bias {
            if let Some(logit) = out.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if let Some(mask) = mask {
            for (chunk, word) in out.chunks_mut(32).zip(mask.iter().chain(std::iter::repeat(&0))) {
                for (bit, logit) in chunk.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    pub(super) fn take(&mut self, token: TokenId) {
        self.last = Some(token);
        if self.params.penalizes() {
            *self.generated.entry(token).or_default() += 1;
        }
    }
}
