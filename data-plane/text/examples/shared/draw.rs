//! Draws tokens from those that a mask allows.

/// xorshift64* (Vigna 2016): the same draws for the same seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).unwrap_or(0) % bound
    }
}

/// The tokens of a mask: bit `token % 32` of word `token / 32`.
pub(crate) fn allowed(mask: &[u32]) -> Vec<u32> {
    let tokens = |(word, bits): (u32, &u32)| {
        let bits = *bits;
        (0..32).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 32 + bit)
    };
    (0..).zip(mask).flat_map(tokens).collect()
}

/// Any of them; `None` if there is none.
pub(crate) fn draw(mask: &[u32], random: &mut Random) -> Option<u32> {
    let allowed = allowed(mask);
    if allowed.is_empty() { None } else { Some(allowed[random.below(allowed.len())]) }
}
