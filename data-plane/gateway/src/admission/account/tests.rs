use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn limits(tokens: Option<u64>, requests: Option<u64>, concurrent: Option<u64>) -> Limits {
    Limits {
        tokens_per_minute: tokens,
        requests_per_minute: requests,
        concurrent_sequences: concurrent,
        ..Limits::default()
    }
}

fn demand(prompt: u64, expected: u64, max: u64) -> Demand {
    Demand { prompt_tokens: prompt, expected_tokens: expected, max_tokens: max, sequences: 1 }
}

#[test]
fn each_limit_stands_in_the_way_by_itself() {
    let mut account = Account::default();
    let check = |account: &Account, wanted: Demand, reason: RefusalReason, wait: Option<Duration>| {
        assert_eq!(account.check(&wanted), Err((reason, wait)));
    };
    account.refresh(&limits(Some(600), Some(2), Some(2)), Duration::ZERO);
    check(&account, demand(601, 0, 0), RefusalReason::TooLarge { limit: 600, requested: 601 }, None);
    let first = account.check(&demand(500, 50, 50)).unwrap();
    account.take(&first);
    let reason = RefusalReason::Tokens { limit: 600, requested: 150, available: 50 };
    check(&account, demand(100, 50, 50), reason, Some(10 * SECOND));
    let second = account.check(&demand(10, 0, 0)).unwrap();
    account.take(&second);
    check(&account, demand(1, 0, 0), RefusalReason::Concurrency { limit: 2 }, Some(SECOND));
    account.settle(&second, 10);
    check(&account, demand(1, 0, 0), RefusalReason::Requests { limit: 2 }, Some(30 * SECOND));
}

#[test]
fn settling_gives_back_what_was_not_used_and_takes_what_was_used_beyond() {
    let mut account = Account::default();
    account.refresh(&limits(Some(1_000), None, None), Duration::ZERO);
    let hold = account.check(&demand(100, 50, 200)).unwrap();
    assert_eq!((hold.tokens, hold.unreserved), (150, 150));
    account.take(&hold);
    assert_eq!(account.limit_states().1.unwrap().remaining, 850);
    account.settle(&hold, 290);
    assert_eq!(account.limit_states().1.unwrap().remaining, 710);
    let hold = account.check(&demand(100, 50, 200)).unwrap();
    account.take(&hold);
    account.settle(&hold, 10);
    assert_eq!(account.limit_states().1.unwrap().remaining, 700);
}

#[test]
fn what_may_outgrow_the_reservations_is_bounded() {
    let mut account = Account::default();
    account.refresh(&limits(Some(1_000), None, None), Duration::ZERO);
    let first = account.check(&demand(0, 50, 250)).unwrap();
    account.take(&first);
    // 200 of the debt of 250 are spoken for; only 50 more may be left unreserved.
    let second = account.check(&demand(0, 50, 250)).unwrap();
    assert_eq!((second.tokens, second.unreserved), (200, 50));
}

#[test]
fn a_limit_that_appears_gives_no_burst_and_one_that_goes_frees() {
    let mut account = Account::default();
    account.refresh(&limits(None, None, None), Duration::ZERO);
    let hold = account.check(&demand(1_000_000, 0, 0)).unwrap();
    account.take(&hold);
    account.settle(&hold, 1_000_000);
    account.refresh(&limits(Some(60), None, None), SECOND);
    assert!(account.check(&demand(1, 0, 0)).is_err());
    account.refresh(&limits(Some(60), None, None), 2 * SECOND);
    assert!(account.check(&demand(1, 0, 0)).is_ok());
    account.refresh(&limits(None, None, None), 2 * SECOND);
    assert!(account.check(&demand(1_000, 0, 0)).is_ok());
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Ask { prompt: u64, expected: u64, max: u64 },
    Settle { which: usize, used_of_max: u64 },
    Abandon(usize),
    Limits(u64, u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0u64..20_000).prop_map(Step::Wait),
        4 => (0u64..60, 0u64..60, 0u64..60).prop_map(|(prompt, expected, max)| Step::Ask { prompt, expected, max }),
        3 => (any::<usize>(), 0u64..=100).prop_map(|(which, used_of_max)| Step::Settle { which, used_of_max }),
        1 => any::<usize>().prop_map(Step::Abandon),
        1 => (40u64..400, 1u64..30, 1u64..6).prop_map(|(t, r, c)| Step::Limits(t, r, c)),
    ]
}

proptest! {
    /// The naive model keeps every admitted request apart. After every step: concurrency is theirs and within the
    /// limit at admission; a bucket is never above its limit; and at the end, when all is settled and a minute has
    /// passed, everything is back.
    #[test]
    fn nothing_is_lost_and_nothing_is_given_twice(steps in prop::collection::vec(step(), 1..80)) {
        let mut now = Duration::ZERO;
        let mut current = limits(Some(200), Some(20), Some(4));
        let mut account = Account::default();
        let mut running: Vec<(Hold, Demand)> = Vec::new();
        for step in steps {
            account.refresh(&current, now);
            match step {
                Step::Wait(millis) => now += Duration::from_millis(millis),
                Step::Limits(tokens, requests, concurrent) => {
                    current = limits(Some(tokens), Some(requests), Some(concurrent));
                }
                Step::Ask { prompt, expected, max } => {
                    let wanted = demand(prompt, expected, max);
                    let before = account.clone();
                    match account.check(&wanted) {
                        Ok(hold) => {
                            prop_assert!(running.len() < usize::try_from(current.concurrent_sequences.unwrap()).unwrap());
                            prop_assert!(hold.tokens() >= prompt + expected.min(max));
                            prop_assert!(hold.tokens() + hold.unreserved == prompt + max);
                            account.take(&hold);
                            running.push((hold, wanted));
                        }
                        Err(_) => prop_assert_eq!(account.limit_states(), before.limit_states()),
                    }
                }
                Step::Settle { which, used_of_max } => {
                    if !running.is_empty() {
                        let (hold, wanted) = running.swap_remove(which % running.len());
                        account.settle(&hold, wanted.prompt_tokens + wanted.max_tokens * used_of_max / 100);
                    }
                }
                Step::Abandon(which) => {
                    if !running.is_empty() {
                        let (hold, _) = running.swap_remove(which % running.len());
                        account.abandon(&hold);
                    }
                }
            }
            prop_assert_eq!(account.in_flight(), running.len() as u64);
            prop_assert_eq!(account.unreserved, running.iter().map(|(hold, _)| hold.unreserved).sum::<u64>());
            let (requests, tokens) = account.limit_states();
            for state in [requests, tokens].into_iter().flatten() {
                prop_assert!(state.remaining <= state.limit);
            }
        }
        for (hold, _) in running.drain(..) {
            account.abandon(&hold);
        }
        account.refresh(&current, now);
        now += Duration::from_secs(600);
        account.refresh(&current, now);
        prop_assert!(account.is_idle(now));
        prop_assert_eq!(account.limit_states().1.unwrap().remaining, current.tokens_per_minute.unwrap());
    }
}
