//! How many tokens an answer will likely need: the 95th percentile of what a tenant's requests to a version lately
//! needed. A generous `max_tokens` then does not reserve what will not be used.

/// Answers remembered: enough for a 95th percentile to rest on three of them, few enough to follow a change of habit.
const REMEMBERED: usize = 64;
/// Fewer answers than this say nothing.
const MEANINGFUL: usize = 8;
/// Expected until then: most chat answers are shorter, and one that is not takes more as it runs.
const UNKNOWN_TOKENS: u64 = 512;

/// The last answers' lengths, a ring.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpectedOutput {
    lengths: Vec<u32>,
    next: usize,
}

impl ExpectedOutput {
    /// Notes an answer's length.
    pub(crate) fn record(&mut self, generated_tokens: u64) {
        let length = u32::try_from(generated_tokens).unwrap_or(u32::MAX);
        if self.lengths.len() < REMEMBERED {
            self.lengths.push(length);
        } else {
            self.lengths[self.next] = length;
        }
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// What to expect of an answer that may have at most `max_tokens`.
    pub(crate) fn expect(&self, max_tokens: u64) -> u64 {
        if self.lengths.len() < MEANINGFUL {
            return max_tokens.min(UNKNOWN_TOKENS);
        }
        let mut sorted = self.lengths.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * 95).div_ceil(100) - 1;
        u64::from(sorted[rank]).max(1).min(max_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expects_a_stated_length_first_then_the_95th_percentile_of_the_last_64() {
        let mut expected = ExpectedOutput::default();
        (0..7).for_each(|_| expected.record(10));
        assert_eq!((expected.expect(4_096), expected.expect(100)), (512, 100));
        expected.record(10);
        assert_eq!((expected.expect(4_096), expected.expect(5)), (10, 5));
        (1..=100).for_each(|length| expected.record(length));
        // The last 64 are 37..=100; the 61st smallest of them is 97.
        assert_eq!(expected.expect(4_096), 97);
        (0..64).for_each(|_| expected.record(0));
        assert_eq!(expected.expect(4_096), 1);
    }
}
