//! A mergeable quantile sketch with bounded relative error: DDSketch (Masson, Rim, Lee: "DDSketch", VLDB 2019)
//! with γ = 1.02, so that every quantile is within 1 %. Sparse, so that a short request's sketch is a few bytes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Ratio between neighbouring bucket bounds; part of the wire format, never changed within `v1`.
const GAMMA: f64 = 1.02;
/// Bucket of the largest value told apart, about an hour in microseconds; longer values are counted there.
const MAX_BUCKET: u16 = 1111;

/// Counts of durations in microseconds by logarithmic bucket: bucket `i` holds values in (1.02^(i-1), 1.02^i],
/// bucket 0 those up to one microsecond.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Sketch(BTreeMap<u16, u64>);

impl Sketch {
    /// Counts one duration.
    pub fn record(&mut self, value_us: u64) {
        *self.0.entry(bucket(value_us)).or_default() += 1;
    }

    /// Adds the other sketch's counts; the result is what recording all values in one sketch gives.
    pub fn merge(&mut self, other: &Self) {
        for (&index, &count) in &other.0 {
            let slot = self.0.entry(index).or_default();
            *slot = slot.saturating_add(count);
        }
    }

    /// Number of durations recorded.
    pub fn count(&self) -> u64 {
        self.0.values().fold(0, |sum, &count| sum.saturating_add(count))
    }

    /// The duration in microseconds at quantile `q` (0 to 1), within 1 %; `None` when nothing was recorded.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = (q.clamp(0.0, 1.0) * (count - 1) as f64).floor();
        let mut seen = 0u64;
        for (&index, &here) in &self.0 {
            seen = seen.saturating_add(here);
            if seen as f64 > rank {
                // The mid-point that halves the relative error (paper, section 2.1).
                return Some(2.0 * GAMMA.powi(i32::from(index)) / (GAMMA + 1.0));
            }
        }
        None
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 0..=MAX_BUCKET first"
)]
fn bucket(value_us: u64) -> u16 {
    if value_us <= 1 {
        return 0;
    }
    let index = ((value_us as f64).ln() / GAMMA.ln()).ceil();
    index.clamp(0.0, f64::from(MAX_BUCKET)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_one_percent_and_merging_changes_nothing() {
        let values: Vec<u64> = (1..=10_000).map(|i| i * 37).collect();
        let (mut whole, mut left, mut right) = (Sketch::default(), Sketch::default(), Sketch::default());
        for (i, &value) in values.iter().enumerate() {
            whole.record(value);
            if i % 3 == 0 { left.record(value) } else { right.record(value) }
        }
        left.merge(&right);
        assert_eq!(left, whole);
        assert_eq!(whole.count(), 10_000);
        for q in [0.0, 0.5, 0.9, 0.99, 1.0] {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "an index below ten thousand"
            )]
            let exact = values[(q * 9_999.0) as usize] as f64;
            let approx = whole.quantile(q).unwrap();
            assert!((approx / exact - 1.0).abs() <= 0.0101, "q {q}: {approx} for {exact}");
        }
    }

    #[test]
    fn extremes_stay_bounded() {
        let mut sketch = Sketch::default();
        for value in [0, 1, u64::MAX] {
            sketch.record(value);
        }
        assert_eq!(sketch.0.keys().copied().collect::<Vec<_>>(), [0, MAX_BUCKET]);
        assert_eq!(Sketch::default().quantile(0.5), None);
    }
}
