use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Ask { least: u64, likely: u64 },
    Grow { which: usize, by: u64 },
    Settle { which: usize, percent: u64 },
    Limit(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u64..90_000).prop_map(Step::Wait),
        5 => (0u64..80, 0u64..80).prop_map(|(least, more)| Step::Ask { least, likely: least + more }),
        5 => (any::<usize>(), 0u64..60).prop_map(|(which, by)| Step::Grow { which, by }),
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

    /// Requests may run for any time, outgrow what they hold as far as there is room, use any part of it, and end in any
    /// order, while the limit changes.
    #[test]
    fn no_stretch_of_time_settles_more_than_limit_burst_and_debt(steps in prop::collection::vec(step(), 1..120)) {
        let mut now = Duration::ZERO;
        let mut limit = 200;
        let mut naive = Naive { limits: vec![(now, limit)], settled: Vec::new() };
        let mut meter = Meter::default();
        let mut running: Vec<u64> = Vec::new();
        for step in steps {
            meter.refresh(Some(limit), None, now);
            match step {
                Step::Wait(millis) => now += Duration::from_millis(millis),
                Step::Limit(new) => {
                    limit = new;
                    naive.limits.push((now, limit));
                    meter.refresh(Some(limit), None, now);
                }
                Step::Ask { least, likely } => {
                    let before = meter.state();
                    match meter.check(least, likely) {
                        Ok(held) => {
                            prop_assert_eq!(held, Some(likely.min(limit).max(least)));
                            running.push(meter.take(held.unwrap()));
                        }
                        Err(excess) => {
                            prop_assert_eq!(meter.state(), before);
                            prop_assert!(excess.requested >= least && excess.requested <= likely);
                            let never = least > limit;
                            prop_assert_eq!(excess.wait.is_none(), never);
                            if let (Some(wait), true) = (excess.wait, meter.held == 0) {
                                let mut later = meter.clone();
                                later.refresh(Some(limit), None, now + wait);
                                prop_assert!(later.check(least, likely).is_ok(), "the stated wait suffices");
                            }
                        }
                    }
                }
                Step::Grow { which, by } => if !running.is_empty() {
                    let room = meter.room_to_grow(now);
                    let which = which % running.len();
                    running[which] += meter.take(by.min(room));
                },
                Step::Settle { which, percent } => if !running.is_empty() {
                    let held = running.swap_remove(which % running.len());
                    let used = held * percent / 100;
                    meter.settle(held, used, now);
                    naive.settled.push((now, used));
                },
            }
            prop_assert_eq!(meter.held, running.iter().sum::<u64>());
            prop_assert!(meter.state().unwrap().remaining <= limit);
        }
        naive.check()?;
        for held in running.drain(..) {
            meter.settle(held, 0, now);
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
    let held = meter.take(meter.check(0, 100).unwrap().unwrap());
    meter.refresh(Some(100), None, minutes(3));
    let refused = meter.check(0, 1).unwrap_err();
    assert_eq!((refused.available, refused.wait), (0, Some(WAIT_FOR_AN_END)));
    meter.settle(held, 10, minutes(3));
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
    let mut running: VecDeque<(Duration, u64)> = VecDeque::new();
    let mut settled = 0;
    let mut now = Duration::ZERO;
    while now < end {
        meter.refresh(Some(limit), None, now);
        while let Some(&(since, held)) = running.front().filter(|(since, _)| now - *since >= run) {
            running.pop_front();
            meter.settle(held, 60, now);
            settled += if since >= begin { 60 } else { 0 };
        }
        while let Ok(Some(likely)) = meter.check(20, 80) {
            running.push_back((now, meter.take(likely)));
        }
        now += Duration::from_millis(100);
    }
    settled += running.iter().filter(|(since, _)| *since >= begin).count() as u64 * 60;
    let earned = 3 * limit;
    assert!(settled >= earned * 97 / 100 && settled <= earned + limit, "{settled}");
}

/// An answer that runs for minutes may not save up what it earns meanwhile and settle it at once.
#[test]
fn one_answer_grows_to_a_minutes_limit_and_half_the_debt() {
    let mut meter = Meter::default();
    meter.refresh(Some(800), None, Duration::ZERO);
    let mut held = meter.take(meter.check(100, 200).unwrap().unwrap());
    for second in 0..600 {
        let room = meter.room_to_grow(Duration::from_secs(second));
        held += meter.take(room.min(10));
    }
    assert_eq!(held, 900);
    // The other half is for what was computed before it was stopped.
    meter.settle(held, 920, Duration::from_secs(600));
    let state = meter.state().unwrap();
    assert_eq!((state.remaining, state.reset), (0, Duration::from_secs(69)));
}
