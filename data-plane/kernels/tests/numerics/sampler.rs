//! How a token is chosen, written once more in double precision with whole sorts, and how clear the choice is.

use weir_kernels::cuda::ops::SeatParameters;

/// What a seat asks for, and what it has seen.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    pub(crate) parameters: SeatParameters,
    pub(crate) bias: Vec<(u32, f32)>,
    pub(crate) history: Vec<u32>,
    pub(crate) prompt_tokens: usize,
}

/// A choice that single precision could make otherwise.
#[derive(Debug, PartialEq)]
pub(crate) struct Unclear;

/// Scores are differences of logits, times the inverse temperature, in single precision: off by about 1e-6 for scores up to ten. What
/// is nearer to a limit than this, or to another token's score, is not asserted.
const CLEAR: f64 = 2e-5;

/// SplitMix64's output function (Steele, Lea, Flood 2014).
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Gumbel noise of a token: the third number of a chain keyed by seed, position and token.
fn noise(seed: u64, position: usize, token: usize) -> f64 {
    let of_seed = mix(seed.wrapping_add(GAMMA));
    let of_position = mix(of_seed ^ (position as u64).wrapping_mul(GAMMA));
    let bits = mix(of_position.wrapping_add((token as u64 + 1).wrapping_mul(GAMMA)));
    let uniform = ((bits >> 12) as f64 + 0.5) / 2.0_f64.powi(52);
    -(-uniform.ln()).ln()
}

impl Seat {
    /// Logits after penalties, bias and mask; what cannot be chosen is negative infinity.
    fn adjusted(&self, logits: &[f32], mask: Option<&[u32]>) -> Vec<f64> {
        let parameters = &self.parameters;
        let has_counts = parameters.count_slot.is_some();
        let adjust = |(token, logit): (usize, &f32)| {
            let mut logit = f64::from(*logit);
            if logit.is_nan() {
                return f64::NEG_INFINITY;
            }
            let is_token = |seen: &&u32| **seen as usize == token;
            let (prompt, answer) = self.history.split_at(self.prompt_tokens);
            let times = answer.iter().filter(is_token).count() as f64;
            if has_counts && (times > 0.0 || prompt.iter().any(|seen| is_token(&seen))) {
                let repetition = f64::from(parameters.repetition_penalty);
                logit = if logit > 0.0 { logit / repetition } else { logit * repetition };
            }
            if has_counts && times > 0.0 {
                logit -= times * f64::from(parameters.frequency_penalty);
                logit -= f64::from(parameters.presence_penalty);
            }
            logit +=
                self.bias.iter().filter(|bias| is_token(&&bias.0)).map(|bias| f64::from(bias.1)).sum::<f64>();
            let is_allowed = mask.is_none_or(|mask| mask[token / 32] >> (token % 32) & 1 == 1);
            if is_allowed { logit } else { f64::NEG_INFINITY }
        };
        logits.iter().enumerate().map(adjust).collect()
    }

    /// The token at `position`; `None` if there is none.
    pub(crate) fn choose(
        &self,
        logits: &[f32],
        mask: Option<&[u32]>,
        position: usize,
    ) -> Result<Option<usize>, Unclear> {
        let adjusted = self.adjusted(logits, mask);
        let highest = adjusted.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if highest == f64::NEG_INFINITY {
            return Ok(None);
        }
        let inverse_temperature = f64::from(self.parameters.inverse_temperature);
        if inverse_temperature == 0.0 || highest == f64::INFINITY {
            return first(
                adjusted
                    .iter()
                    .map(
                        |logit| {
                            if highest.is_infinite() && *logit == highest { 0.0 } else { logit - highest }
                        },
                    )
                    .enumerate(),
            );
        }
        let scores = adjusted.iter().map(|logit| (logit - highest) * inverse_temperature);
        let mut kept: Vec<(usize, f64)> = scores.enumerate().filter(|kept| kept.1.is_finite()).collect();
        kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        self.keep_top_k(&mut kept, logits.len())?;
        self.keep_nucleus(&mut kept)?;
        let min_score = f64::from(self.parameters.min_score);
        if kept.iter().any(|kept| (kept.1 - min_score).abs() < CLEAR) {
            return Err(Unclear);
        }
        kept.retain(|kept| kept.1 >= min_score);
        let noisy =
            |(token, score): (usize, f64)| (token, score + noise(self.parameters.seed, position, token));
        first(kept.into_iter().map(noisy))
    }

    fn keep_top_k(&self, kept: &mut Vec<(usize, f64)>, vocab_size: usize) -> Result<(), Unclear> {
        let top_k = self.parameters.top_k as usize;
        if top_k == 0 || top_k >= vocab_size.min(kept.len()) {
            return Ok(());
        }
        if kept[top_k - 1].1 - kept[top_k].1 < CLEAR {
            return Err(Unclear);
        }
        kept.truncate(top_k);
        Ok(())
    }

    /// Keeps the shortest head whose mass reaches top-p of what is kept.
    fn keep_nucleus(&self, kept: &mut Vec<(usize, f64)>) -> Result<(), Unclear> {
        let top_p = f64::from(self.parameters.top_p);
        if top_p >= 1.0 {
            return Ok(());
        }
        let all: f64 = kept.iter().map(|kept| kept.1.exp()).sum();
        let mut head = 0.0;
        for i in 0..kept.len() {
            head += kept[i].1.exp();
            // Relative errors of 1e-6 in each of the masses.
            if (head / all - top_p).abs() < CLEAR {
                return Err(Unclear);
            }
            if head / all > top_p {
                let next = kept.get(i + 1).map_or(f64::NEG_INFINITY, |next| next.1);
                if kept[i].1 - next < CLEAR {
                    return Err(Unclear);
                }
                kept.truncate(i + 1);
                break;
            }
        }
        Ok(())
    }
}

/// The token with the highest score.
fn first(scores: impl Iterator<Item = (usize, f64)>) -> Result<Option<usize>, Unclear> {
    let mut best: Option<(usize, f64)> = None;
    let mut second = f64::NEG_INFINITY;
    for (token, score) in scores {
        match best {
            Some(highest) if score <= highest.1 => second = second.max(score),
            _ => {
                second = best.map_or(second, |best| best.1);
                best = Some((token, score));
            }
        }
    }
    match best {
        Some((token, score)) if score - second >= CLEAR => Ok(Some(token)),
        Some(_) => Err(Unclear),
        None => Ok(None),
    }
}
