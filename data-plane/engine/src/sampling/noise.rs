//! Sampling noise as a pure function of (seed, position, token).
//!
//! SplitMix64's output function (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014) is
//! used as a counter-based generator: the row's key comes from seed and position, the counter is the token id.

use crate::sequence::TokenId;

/// What the counter grows by.
pub(crate) const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function: 64 well-mixed bits of a counter.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The noise of all tokens at one position of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowNoise {
    key: u64,
}

impl RowNoise {
    pub(super) fn new(seed: u64, position: u32) -> Self {
        let row = mix(seed.wrapping_add(GOLDEN_GAMMA));
        Self { key: mix(row ^ u64::from(position).wrapping_mul(GOLDEN_GAMMA)) }
    }

    pub(super) fn bits(self, token: TokenId) -> u64 {
        mix(self.key.wrapping_add(u64::from(token).wrapping_add(1).wrapping_mul(GOLDEN_GAMMA)))
    }
}

/// Largest value that [`gumbel`] can give, rounded up: 53 ln 2.
pub(super) const GUMBEL_MAX: f64 = 36.75;

/// Standard Gumbel noise, `-ln(-ln u)`, with u in (0, 1) from the upper 52 bits.
pub(super) fn gumbel(bits: u64) -> f64 {
    // 52 bits and a half are exact in an f64, so u is never 0 or 1.
    #[expect(clippy::cast_precision_loss, reason = "the value has 52 bits")]
    let u = ((bits >> 12) as f64 + 0.5) * (1.0 / (1_u64 << 52) as f64);
    -(-u.ln()).ln()
}

/// An upper bound of [`gumbel`] for the price of one instruction: `-ln(-ln u) <= -ln(1 - u)`, and the leading
/// zeros of the complement bound the latter. Lets nearly all tokens be passed over without a logarithm.
pub(super) fn gumbel_bound(bits: u64) -> f64 {
    f64::from((!bits).leading_zeros() + 1) * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_holds_at_the_edges_and_in_between() {
        for bits in [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, u64::MAX << 12, u64::MAX >> 1] {
            assert!(gumbel(bits).is_finite() && gumbel(bits) <= gumbel_bound(bits) + 1e-12, "{bits:#x}");
            assert!(gumbel(bits) < GUMBEL_MAX);
        }
        let noise = RowNoise::new(7, 3);
        for token in 0..100_000 {
            let bits = noise.bits(token);
            assert!(gumbel(bits) <= gumbel_bound(bits), "{bits:#x}");
        }
    }

    #[test]
    fn rows_and_tokens_have_their_own_noise() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..10 {
            for position in 0..100 {
                for token in 0..100 {
                    assert!(seen.insert(RowNoise::new(seed, position).bits(token)));
                }
            }
        }
    }

    #[test]
    fn mean_is_eulers_constant() {
        let noise = RowNoise::new(1, 2);
        let count = 200_000_u32;
        let mean = (0..count).map(|token| gumbel(noise.bits(token))).sum::<f64>() / f64::from(count);
        assert!((mean - 0.577_215_664_9).abs() < 0.01, "{mean}");
    }
}
