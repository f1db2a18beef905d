//! What a request must satisfy before it may wait: refused at once instead of failing later.

use super::AddError;
use crate::executor::Capacity;
use crate::sampling::LOGIT_BIAS_MAX;
use crate::sequence::SequenceRequest;

pub(super) fn check(request: &SequenceRequest, capacity: &Capacity) -> Result<(), AddError> {
    if request.prompt.is_empty() {
        return Err(AddError::EmptyPrompt);
    }
    if request.max_tokens == 0 {
        return Err(AddError::NoOutput);
    }
    request.sampling.validate().map_err(AddError::InvalidSampling)?;
    let is_sound =
        |(token, bias): &(u32, f32)| *token < capacity.vocab_size && (-100.0..=100.0).contains(bias);
    if request.logit_bias.len() > LOGIT_BIAS_MAX || !request.logit_bias.iter().all(is_sound) {
        return Err(AddError::InvalidSampling("logit_bias"));
    }
    let tokens = request.prompt.len() as u64 + u64::from(request.max_tokens);
    let context_limit = capacity.context_limit;
    if tokens > u64::from(context_limit) {
        return Err(AddError::ContextLength { tokens, context_limit });
    }
    // The last token is delivered and never computed, so it needs no room.
    let blocks = (tokens - 1).div_ceil(u64::from(capacity.block_tokens));
    if blocks > u64::from(capacity.num_pages) {
        return Err(AddError::NeverFits { blocks, num_pages: capacity.num_pages });
    }
    let vocab_size = capacity.vocab_size;
    match request.prompt.iter().position(|&token| token >= vocab_size) {
        Some(position) => Err(AddError::UnknownToken { position, vocab_size }),
        None => Ok(()),
    }
}
