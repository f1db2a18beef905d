//! Latencies of the last few minutes by model, for those who look at a gateway without a Prometheus of their own.

use std::collections::{HashMap, VecDeque};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use weir_schemas::records::ChargeData;
use weir_schemas::sketch::Sketch;

/// Whole minutes looked back on, beside the one that runs.
const MINUTES: i64 = 5;

/// By model as clients name it; only names that the config knows come here.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<HashMap<String, VecDeque<Minute>>>);

#[derive(Debug)]
struct Minute {
    number: i64,
    ttft: Sketch,
    tpot: Sketch,
}

/// In milliseconds; `None` where nothing was served lately.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Latencies {
    pub(crate) ttft_p50_ms: Option<f64>,
    pub(crate) ttft_p99_ms: Option<f64>,
    /// Of requests' mean time per output token after the first.
    pub(crate) tpot_p50_ms: Option<f64>,
}

impl Recent {
    /// Counts a request that ended.
    pub(crate) fn ended(&self, charge: &ChargeData) {
        let Some(ttft_us) = charge.ttft_us else { return };
        let number = minute(charge.finished_at);
        let mut models = self.0.lock();
        let minutes = models.entry(charge.requested_model.clone()).or_default();
        forget(minutes, number);
        if minutes.back().is_none_or(|latest| latest.number < number) {
            minutes.push_back(Minute { number, ttft: Sketch::default(), tpot: Sketch::default() });
        }
        let Some(latest) = minutes.back_mut() else { return };
        latest.ttft.record(ttft_us);
        // Choices come side by side.
        let gaps = (charge.generated_tokens / u64::from(charge.n.max(1))).saturating_sub(1);
        if let Some(tpot_us) = charge.decode_us.checked_div(gaps) {
            latest.tpot.record(tpot_us);
        }
    }

    pub(crate) fn latencies(&self, model: &str, now: DateTime<Utc>) -> Latencies {
        let mut models = self.0.lock();
        let Some(minutes) = models.get_mut(model) else { return Latencies::default() };
        forget(minutes, minute(now));
        let (mut ttft, mut tpot) = (Sketch::default(), Sketch::default());
        for minute in minutes.iter() {
            ttft.merge(&minute.ttft);
            tpot.merge(&minute.tpot);
        }
        let ms = |sketch: &Sketch, q| sketch.quantile(q).map(|us| (us / 10.0).round() / 100.0);
        Latencies { ttft_p50_ms: ms(&ttft, 0.5), ttft_p99_ms: ms(&ttft, 0.99), tpot_p50_ms: ms(&tpot, 0.5) }
    }
}

fn minute(at: DateTime<Utc>) -> i64 {
    at.timestamp().div_euclid(60)
}

fn forget(minutes: &mut VecDeque<Minute>, now: i64) {
    while minutes.front().is_some_and(|oldest| oldest.number < now - MINUTES) {
        minutes.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::charge;

    #[test]
    fn the_last_minutes_count_and_those_before_are_forgotten() {
        let recent = Recent::default();
        let at = |s: i64| DateTime::from_timestamp(1_800_000_000 + s, 0).unwrap();
        let end = |s: i64, ttft_us: u64, n: u32| {
            let (generated_tokens, decode_us) = (11 * u64::from(n), 20_000);
            let of = ChargeData { requested_model: "m".into(), finished_at: at(s), n, ..charge() };
            recent.ended(&ChargeData { ttft_us: Some(ttft_us), generated_tokens, decode_us, ..of });
        };
        end(0, 900_000, 1);
        (0..98).for_each(|_| end(200, 100_000, 3));
        end(200, 500_000, 1);
        let near = |actual: Option<f64>, expected: f64| {
            let actual = actual.unwrap();
            assert!((actual / expected - 1.0).abs() < 0.011, "{actual} is not {expected}");
        };
        let all = recent.latencies("m", at(210));
        near(all.ttft_p50_ms, 100.0);
        near(all.tpot_p50_ms, 2.0);
        near(recent.latencies("m", at(60 * 6)).ttft_p99_ms, 100.0);
        assert_eq!(recent.latencies("m", at(3600)), Latencies::default());
        assert_eq!(recent.latencies("other", at(210)), Latencies::default());
    }
}
