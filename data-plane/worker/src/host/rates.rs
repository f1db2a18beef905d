//! Measured speed of an engine, for the routing of requests: how fast prompts are computed, how fast tokens come out of a
//! full batch, and how many of them an answer takes.

use std::time::Duration;

/// Weight of a new step in the running mean: the last few dozen steps count.
const NEW_STEP_WEIGHT: f64 = 0.05;

/// Weight of a new answer: the last hundred or so count.
const NEW_ANSWER_WEIGHT: f64 = 0.02;

/// Exponentially weighted means over steps, and over answers; 0 until measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rates {
    pub(crate) prefill_tokens_per_s: f64,
    pub(crate) decode_tokens_per_s: f64,
    /// Length of an answer that came to its end.
    pub(crate) answer_tokens: f64,
}

impl Rates {
    /// Takes a step in. In a mixed step the time is shared by tokens, as it is in the records.
    pub(crate) fn observe(&mut self, prefill_tokens: u32, decode_tokens: u32, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        let tokens = f64::from(prefill_tokens) + f64::from(decode_tokens);
        if seconds <= 0.0 || tokens <= 0.0 {
            return;
        }
        let per_s = tokens / seconds;
        if prefill_tokens > decode_tokens {
            mix(&mut self.prefill_tokens_per_s, per_s, NEW_STEP_WEIGHT);
        } else {
            mix(&mut self.decode_tokens_per_s, per_s, NEW_STEP_WEIGHT);
        }
    }

    /// Takes an answer in that was not broken off.
    pub(crate) fn answered(&mut self, generated_tokens: u32) {
        mix(&mut self.answer_tokens, f64::from(generated_tokens), NEW_ANSWER_WEIGHT);
    }
}

fn mix(mean: &mut f64, sample: f64, weight: f64) {
    *mean = if *mean == 0.0 { sample } else { *mean + weight * (sample - *mean) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_is_taken_whole_and_later_ones_move_the_mean() {
        let mut rates = Rates::default();
        rates.observe(0, 0, Duration::from_millis(10));
        assert_eq!(rates, Rates::default());
        rates.observe(100, 0, Duration::from_millis(100));
        rates.observe(0, 10, Duration::from_millis(100));
        assert_eq!((rates.prefill_tokens_per_s, rates.decode_tokens_per_s), (1000.0, 100.0));
        rates.observe(200, 4, Duration::from_millis(102));
        assert_eq!(rates.prefill_tokens_per_s, 1050.0);
        rates.answered(100);
        rates.answered(200);
        assert_eq!(rates.answer_tokens, 102.0);
    }
}
