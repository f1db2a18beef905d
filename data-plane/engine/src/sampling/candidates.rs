//! The tokens that can still be chosen, found without sorting the vocabulary.

use std::cmp::Ordering;

use super::noise::{GUMBEL_MAX, RowNoise, gumbel, gumbel_bound};
use crate::sequence::TokenId;

/// Logits whose maximum is kept together. Small enough to skip most of the vocabulary, large enough that the
/// list of maxima is nothing beside it.
const CHUNK: usize = 64;
const CHUNK_TOKENS: TokenId = 64;
/// Independent lanes of a pass, so that it becomes vector code.
const LANES: usize = 8;
/// Score ranges in which a nucleus adds up its mass: only the one range where it ends is sorted.
const BUCKETS: usize = 1024;
/// Below this, sorting is quicker than ranges.
const SORTED_MAX: usize = 128;

/// A token and its score: (logit − highest logit) / temperature, so at most 0.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    score: f32,
    token: TokenId,
}

impl Candidate {
    /// Most likely first, lowest id on a tie. Scores are never NaN.
    fn order(a: &Self, b: &Self) -> Ordering {
        b.score.total_cmp(&a.score).then(a.token.cmp(&b.token))
    }
}

#[derive(Debug, Default)]
pub(super) struct Candidates {
    max: f32,
    chunk_max: Vec<f32>,
    selection: Vec<f32>,
    kept: Vec<Candidate>,
    bucket_mass: Vec<f64>,
    boundary: Vec<Candidate>,
}

impl Candidates {
    /// Finds the maxima; what is not a number counts as negative infinity. Returns the highest logit.
    pub(super) fn scan(&mut self, logits: &[f32]) -> f32 {
        self.chunk_max.clear();
        self.chunk_max.extend(logits.chunks(CHUNK).map(max_of));
        self.max = max_of(&self.chunk_max);
        self.max
    }

    /// The lowest token with the highest logit.
    pub(super) fn first_of_max(&self, logits: &[f32]) -> Option<TokenId> {
        let chunk = self.chunk_max.iter().position(|max| *max == self.max)?;
        let start = chunk * CHUNK;
        let offset = logits[start..].iter().position(|logit| *logit == self.max)?;
        TokenId::try_from(start + offset).ok()
    }

    /// Fills `kept` with the tokens that pass top-k and then top-p.
    pub(super) fn filter(&mut self, logits: &[f32], inverse_temperature: f32, top_k: u32, top_p: f32) {
        let top_k = top_k as usize;
        if top_k > 0 && top_k < logits.len() {
            let cut = self.logit_cut_for_top_k(top_k);
            self.collect(logits, inverse_temperature, cut);
            self.keep_top_k(top_k);
            if top_p < 1.0 {
                let mass = self.kept.iter().map(|kept| f64::from(exp_of_score(kept.score))).sum::<f64>();
                self.keep_nucleus(f64::from(top_p) * mass);
            }
        } else if top_p < 1.0 {
            let mass = self.mass_of_all(logits, inverse_temperature);
            // All tokens below this score together weigh less than the tail that top-p drops.
            #[expect(clippy::cast_precision_loss, reason = "a vocabulary is far smaller than 2^52")]
            let tail_score = ((1.0 - f64::from(top_p)) * mass / logits.len() as f64).ln();
            #[expect(clippy::cast_possible_truncation, reason = "a cut with slack, precision is not needed")]
            let cut = self.max + ((tail_score - 1e-3) / f64::from(inverse_temperature)) as f32;
            self.collect(logits, inverse_temperature, cut.min(self.max));
            self.keep_nucleus(f64::from(top_p) * mass);
        } else {
            self.collect(logits, inverse_temperature, f32::NEG_INFINITY);
        }
    }

    pub(super) fn gumbel_max_of_filtered(&self, min_score: f32, noise: RowNoise) -> Option<TokenId> {
        let mut best = Best::default();
        for kept in self.kept.iter().filter(|kept| kept.score >= min_score) {
            best.offer(kept.score, kept.token, noise);
        }
        best.token
    }

    /// Gumbel-max with no filter but min-p, straight over the logits.
    pub(super) fn gumbel_max_of_all(
        &self,
        logits: &[f32],
        inverse_temperature: f32,
        min_score: f32,
        noise: RowNoise,
    ) -> Option<TokenId> {
        let mut best = Best::default();
        let mut first_token = 0;
        for (chunk, &chunk_max) in logits.chunks(CHUNK).zip(&self.chunk_max) {
            let chunk_score = (chunk_max - self.max) * inverse_temperature;
            if chunk_score >= min_score && f64::from(chunk_score) + GUMBEL_MAX > best.value {
                for (&logit, token) in chunk.iter().zip(first_token..) {
                    let score = (logit - self.max) * inverse_temperature;
                    if score >= min_score && score > f32::NEG_INFINITY {
                        best.offer(score, token, noise);
                    }
                }
            }
            first_token += CHUNK_TOKENS;
        }
        best.token
    }

    /// A logit that at least `top_k` tokens reach: the k-th highest chunk maximum.
    fn logit_cut_for_top_k(&mut self, top_k: usize) -> f32 {
        if top_k > self.chunk_max.len() {
            return f32::NEG_INFINITY;
        }
        self.selection.clear();
        self.selection.extend_from_slice(&self.chunk_max);
        *self.selection.select_nth_unstable_by(top_k - 1, |a, b| b.total_cmp(a)).1
    }

    fn collect(&mut self, logits: &[f32], inverse_temperature: f32, logit_cut: f32) {
        self.kept.clear();
        let mut first_token = 0;
        for (chunk, &chunk_max) in logits.chunks(CHUNK).zip(&self.chunk_max) {
            if chunk_max >= logit_cut {
                for (&logit, token) in chunk.iter().zip(first_token..) {
                    if logit >= logit_cut && logit > f32::NEG_INFINITY {
                        let score = (logit - self.max) * inverse_temperature;
                        self.kept.push(Candidate { score, token });
                    }
                }
            }
            first_token += CHUNK_TOKENS;
        }
    }

    fn keep_top_k(&mut self, top_k: usize) {
        if top_k < self.kept.len() {
            self.kept.select_nth_unstable_by(top_k - 1, Candidate::order);
            self.kept.truncate(top_k);
        }
    }

    /// Keeps the shortest head of the order whose mass reaches `wanted`; the order of `kept` is lost. Linear in
    /// the number kept, with a sort of what lies where the head ends.
    fn keep_nucleus(&mut self, wanted: f64) {
        self.boundary.clear();
        let mut mass = 0.0;
        if self.kept.len() <= SORTED_MAX {
            self.boundary.append(&mut self.kept);
        } else {
            mass = self.move_boundary_out(wanted);
        }
        self.boundary.sort_unstable_by(Candidate::order);
        for candidate in &self.boundary {
            if mass >= wanted {
                break;
            }
            mass += f64::from(exp_of_score(candidate.score));
            self.kept.push(*candidate);
        }
    }

    /// Leaves in `kept` the score ranges that are wanted whole, moves the one where the nucleus ends to
    /// `boundary`, and returns the mass of what is left.
    fn move_boundary_out(&mut self, wanted: f64) -> f64 {
        let lowest =
            self.kept.iter().fold(0.0, |lowest, kept| if kept.score < lowest { kept.score } else { lowest });
        #[expect(clippy::cast_precision_loss, reason = "a small power of two")]
        let buckets_each = (BUCKETS - 1) as f32 / -lowest.clamp(-f32::MAX, -f32::MIN_POSITIVE);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates, and is clamped"
        )]
        let bucket_of = |score: f32| ((-score * buckets_each) as usize).min(BUCKETS - 1);
        self.bucket_mass.clear();
        self.bucket_mass.resize(BUCKETS, 0.0);
        for kept in &self.kept {
            self.bucket_mass[bucket_of(kept.score)] += f64::from(exp_of_score(kept.score));
        }
        let mut mass = 0.0;
        let mut end = 0;
        while end < BUCKETS && mass + self.bucket_mass[end] < wanted {
            mass += self.bucket_mass[end];
            end += 1;
        }
        let boundary = &mut self.boundary;
        self.kept.retain(|kept| {
            let bucket = bucket_of(kept.score);
            if bucket == end {
                boundary.push(*kept);
            }
            bucket < end
        });
        mass
    }

    /// Sum of `exp(score)` over the vocabulary.
    fn mass_of_all(&self, logits: &[f32], inverse_temperature: f32) -> f64 {
        let mut mass = 0.0;
        for chunk in logits.chunks(CHUNK) {
            let mut lanes = [0.0_f32; LANES];
            let (vectors, tail) = chunk.as_chunks::<LANES>();
            for vector in vectors {
                for lane in 0..LANES {
                    lanes[lane] += exp_of_score((vector[lane] - self.max) * inverse_temperature);
                }
            }
            for &logit in tail {
                lanes[0] += exp_of_score((logit - self.max) * inverse_temperature);
            }
            mass += lanes.iter().map(|&lane| f64::from(lane)).sum::<f64>();
        }
        mass
    }
}

/// The highest perturbed score so far.
#[derive(Debug)]
struct Best {
    value: f64,
    token: Option<TokenId>,
}

impl Default for Best {
    fn default() -> Self {
        Self { value: f64::NEG_INFINITY, token: None }
    }
}

impl Best {
    fn offer(&mut self, score: f32, token: TokenId, noise: RowNoise) {
        let bits = noise.bits(token);
        let score = f64::from(score);
        if score + gumbel_bound(bits) < self.value {
            return;
        }
        let value = score + gumbel(bits);
        if value > self.value || (value == self.value && self.token.is_some_and(|best| token < best)) {
            *self = Self { value, token: Some(token) };
        }
    }
}

/// Highest value, passing over what is not a number.
fn max_of(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (vectors, tail) = values.as_chunks::<LANES>();
    for vector in vectors {
        for lane in 0..LANES {
            lanes[lane] = if vector[lane] > lanes[lane] { vector[lane] } else { lanes[lane] };
        }
    }
    for &value in tail {
        lanes[0] = if value > lanes[0] { value } else { lanes[0] };
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, |max, lane| if lane > max { lane } else { max })
}

/// `exp(score)` for a score of at most 0, within 2e-7 relative; 0 below −80 and for what is not a number.
/// A polynomial of degree 6 after range reduction, in a form that compiles to vector code.
fn exp_of_score(score: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 × 2^23: adding it leaves the nearest integer in the low bits.
    let usable = score > -80.0;
    let x = if usable { score } else { -80.0 };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts, the first exact in few bits (Cody and Waite).
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p = 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r + 1.0;
    let p = p * r + 1.0;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if usable { p * scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_everywhere() {
        for step in 0..60_000_u16 {
            let score = -f32::from(step) * 1.3e-3;
            let expected = f64::from(score).exp();
            let actual = f64::from(exp_of_score(score));
            assert!((actual - expected).abs() <= 4e-7 * expected, "{score}: {actual} {expected}");
        }
        assert_eq!([f32::NAN, f32::NEG_INFINITY, -81.0].map(exp_of_score), [0.0; 3]);
    }

    #[test]
    fn max_ignores_nan_and_handles_tails() {
        assert_eq!(max_of(&[]), f32::NEG_INFINITY);
        assert_eq!(max_of(&[f32::NAN; 9]), f32::NEG_INFINITY);
        let mut values = vec![f32::NAN, 1.0, 2.0, f32::NAN, -4.0, 0.0, 0.5, 0.25, 0.1, 3.0, f32::NAN];
        assert_eq!(max_of(&values), 3.0);
        values[0] = 9.0;
        assert_eq!(max_of(&values), 9.0);
    }
}
