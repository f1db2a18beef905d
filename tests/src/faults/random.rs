//! Repeatable choices.

/// SplitMix64 (Steele, Lea and Flood, 2014): one state, no dependency, the same numbers everywhere.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another generator, for the `number`-th request: its choices do not depend on the order in which requests run.
    pub fn of(seed: u64, number: u64) -> Self {
        Self(Self(seed ^ number.wrapping_mul(0xD6E8_FEB8_6659_FD93)).next())
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "an endless stream is no iterator to loop over")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// One of `0..end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
