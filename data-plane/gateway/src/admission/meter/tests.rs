use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Ask { likely: u64, most: u64 },
    Settle { which: usize, percent: u64 },
    Limit(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u64..90_000).prop_map(Step::Wait),
        5 => (0u64..80, 0u64..80).prop_map(|(likely, more)| Step::Ask { likely, most: likely + more }),
        4 => (any::<usize>(), prop_oneof![Just(0u64), 0u64..=100, Just(100)])
            .prop_map(|(which, percent)| Step::Settle { which, percent }),
        1 => (20u64..400).prop_map(Step::Limit),
    ]
}

/// What a naive model knows: when which limit began, and when how much was settled.
struct Naive {
    limits: Vec<(Duration, u64)>,
    settled: Vec<(Duration, u64)>,
}

impl Naive {
    fn earned(&self, from: Duration, to: Duration) -> f64 {
        let of_limit = |(at, &(since, limit)): (usize, &(Duration, u64))| {
            let until = self.limits.get(at + 1).map_or(to, |next| next.0).min(to);
            until.saturating_sub(since.max(from)).as_secs_f64() / 60.0 * limit as f64
        };
        self.limits.iter().enumerate().map(of_limit).sum()
    }

    /// In every stretch of time from one settlement to another, both counted: the limits times the time, one burst, the debt.
    fn check(&self) -> Result<(), TestCaseError> {
        for (first, &(from, _)) in self.settled.iter().enumerate() {
            let highest =
                self.limits.iter().filter(|limit| limit.0 <= from).map(|limit| limit.1).max().unwrap();
            let mut sum = 0;
            for &(to, tokens) in &self.settled[first..] {
                sum += tokens;
                let later =
                    self.limits.iter().filter(|limit| limit.0 <= to).map(|limit| limit.1).max().unwrap();
                let bound = self.earned(from, to) + highest as f64 + (later / DEBT_DIVISOR) as f64;
                prop_assert!(sum as f64 <= bound + 1e-6, "{sum} > {bound} from {from:?} to {to:?}");
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Requests may run for any time, use any part of what they may, and end in any order, while the limit changes.
    #[test]
    fn no_stretch_of_time_settles_more_than_limit_burst_and_debt(steps in prop::collection::vec(step(), 1..120)) {
        let mut now = Duration::ZERO;
        let mut limit = 200;
        let mut naive = Naive { limits: vec![(now, limit)], settled: Vec::new() };
        let mut meter = Meter::default();
        let mut running: Vec<(Held, u64)> = Vec::new();
        for step in steps {
            meter.refresh(Some(limit), None, now);
            match step {
                Step::Wait(millis) => now += Duration::from_millis(millis),
                Step::Limit(new) => {
                    limit = new;
                    naive.limits.push((now, limit));
                    meter.refresh(Some(limit), None, now);
                }
                Step::Ask { likely, most } => {
                    let before = meter.state();
                    match meter.check(likely, most) {
                        Ok(held) => {
                            prop_assert!(held.tokens >= likely && held.tokens + held.unreserved == most);
                            meter.take(&held);
                            running.push((held, most));
                        }
                        Err(excess) => {
                            prop_assert_eq!(meter.state(), before);
                            prop_assert!(excess.requested >= likely && excess.requested <= most);
                            let never = excess.requested > limit;
                            prop_assert_eq!(excess.wait.is_none(), never);
                            if let (Some(wait), true) = (excess.wait, meter.held == 0) {
                                let mut later = meter.clone();
                                later.refresh(Some(limit), None, now + wait);
                                prop_assert!(later.check(likely, most).is_ok(), "the stated wait suffices");
                            }
                        }
                    }
                }
                Step::Settle { which, percent } => if !running.is_empty() {
                    let (held, most) = running.swap_remove(which % running.len());
                    let used = most * percent / 100;
                    meter.settle(&held, used, now);
                    naive.settled.push((now, used));
                },
            }
            prop_assert_eq!(meter.held, running.iter().map(|(held, _)| held.tokens).sum::<u64>());
            prop_assert_eq!(meter.unreserved, running.iter().map(|(held, _)| held.unreserved).sum::<u64>());
            prop_assert!(meter.state().unwrap().remaining <= limit);
        }
        naive.check()?;
        for (held, _) in running.drain(..) {
            meter.settle(&held, 0, now);
        }
        // The longest debt there can be, and a minute to fill.
        now += Duration::from_secs(60 * 400);
        meter.refresh(Some(limit), None, now);
        prop_assert!(meter.is_idle(now));
        prop_assert_eq!(meter.state().unwrap().remaining, limit);
    }
}

/// A minute's limit held for minutes, and given back unused, does not add up to more than one burst.
#[test]
fn what_comes_back_late_is_not_a_second_burst() {
    let mut meter = Meter::default();
    let minutes = |number: u64| Duration::from_secs(60 * number);
    meter.refresh(Some(100), None, Duration::ZERO);
    let held = meter.check(100, 100).unwrap();
    meter.take(&held);
    meter.refresh(Some(100), None, minutes(3));
    let refused = meter.check(1, 1).unwrap_err();
    assert_eq!((refused.available, refused.wait), (0, Some(WAIT_FOR_AN_END)));
    meter.settle(&held, 10, minutes(3));
    assert_eq!(meter.state().unwrap().remaining, 90);
    meter.refresh(Some(100), None, minutes(3) + Duration::from_secs(6));
    assert_eq!(meter.state().unwrap().remaining, 100);
}

/// Steady use of the whole limit, by requests of some seconds each, is never held up by what is in flight. Once the burst
/// is spent, three minutes settle what three minutes earn.
#[test]
fn all_of_the_limit_can_be_used() {
    let mut meter = Meter::default();
    let (limit, run) = (6_000, Duration::from_secs(5));
    let (begin, end) = (Duration::from_secs(60), Duration::from_secs(240));
    let mut running: VecDeque<(Duration, Held)> = VecDeque::new();
    let mut settled = 0;
    let mut now = Duration::ZERO;
    while now < end {
        meter.refresh(Some(limit), None, now);
        while let Some(&(since, held)) = running.front().filter(|(since, _)| now - *since >= run) {
            running.pop_front();
            meter.settle(&held, 60, now);
            settled += if since >= begin { 60 } else { 0 };
        }
        while let Ok(held) = meter.check(80, 400) {
            meter.take(&held);
            running.push_back((now, held));
        }
        now += Duration::from_millis(100);
    }
    settled += running.iter().filter(|(since, _)| *since >= begin).count() as u64 * 60;
    let earned = 3 * limit;
    assert!(settled >= earned * 97 / 100 && settled <= earned + limit, "{settled}");
}
