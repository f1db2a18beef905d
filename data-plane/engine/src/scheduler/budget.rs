//! The token budget of one step, and where prefill chunks end.

use crate::engine::EngineConfig;

/// Prefill tokens that are still to be given out in this step.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefillBudget {
    left: u32,
    chunk_tokens: u32,
}

impl PrefillBudget {
    /// What decodes leave: they come first and always fit, as the step's budget has a token for each seat and
    /// a chunk on top. Beside decodes, prefill is capped so that they do not wait for long.
    pub(super) fn beside_decodes(config: &EngineConfig, num_decodes: u32) -> Self {
        let left = config.step_tokens_max.saturating_sub(num_decodes);
        let cap = if num_decodes == 0 { left } else { config.prefill_tokens_beside_decode_max };
        Self { left: left.min(cap), chunk_tokens: config.chunk_tokens }
    }

    /// Takes the next chunk of a sequence that is computed up to `start` and known up to `end`. Chunks end at
    /// absolute multiples of the chunk length or at `end`, and are taken whole or not at all, so that where a
    /// prompt is cut does not depend on what else is in the batch. Zero if the chunk does not fit any more.
    pub(super) fn take_chunk(&mut self, start: u32, end: u32) -> u32 {
        let chunk_end = (start / self.chunk_tokens + 1).saturating_mul(self.chunk_tokens);
        let num_tokens = chunk_end.min(end) - start;
        if num_tokens > self.left {
            return 0;
        }
        self.left -= num_tokens;
        num_tokens
    }

    /// Returns what was taken for a sequence that lost its seat before the step.
    pub(super) fn give_back(&mut self, num_tokens: u32) {
        self.left += num_tokens;
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(left: u32) -> PrefillBudget {
        PrefillBudget { left, chunk_tokens: 64 }
    }

    #[test]
    fn chunks_end_at_absolute_multiples() {
        for (left, start, end, expected) in [
            (100, 0, 200, 64),
            (100, 16, 200, 48),
            (100, 64, 70, 6),
            (64, 64, 128, 64),
            (63, 64, 128, 0),
            (63, 80, 128, 48),
            (0, 5, 6, 0),
        ] {
            let mut budget = budget(left);
            assert_eq!(budget.take_chunk(start, end), expected, "{left} {start} {end}");
            assert_eq!(budget.left, left - expected);
        }
    }
}
