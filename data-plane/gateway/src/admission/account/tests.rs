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

fn demand(prompt: u64, expected: u64) -> Demand {
    Demand { prompt_tokens: prompt, expected_tokens: expected, sequences: 1 }
}

fn used(prompt_tokens: u64, generated_tokens: u64) -> Used {
    Used { prompt_tokens, generated_tokens }
}

fn account(limits: &Limits) -> Account {
    let mut account = Account::default();
    account.refresh(limits, Duration::ZERO);
    account
}

fn take(account: &mut Account, demand: Demand) -> Hold {
    let hold = account.check(&demand).unwrap();
    account.take(&hold, Duration::ZERO);
    hold
}

/// Kind, limit, what was asked for and what there was, seconds to wait.
fn refusal(account: &Account, demand: Demand) -> (LimitKind, u64, u64, u64, Option<u64>) {
    let (kind, Excess { limit, requested, available, wait }) = account.check(&demand).unwrap_err();
    (kind, limit, requested, available, wait.map(|wait| wait.as_secs()))
}

fn remaining(account: &Account) -> u64 {
    account.token_states().next().unwrap().remaining
}

#[test]
fn each_limit_stands_in_the_way_by_itself() {
    let mut account = account(&limits(Some(600), Some(2), Some(2)));
    assert_eq!(refusal(&account, demand(601, 0)), (LimitKind::Tokens, 600, 601, 600, None));
    take(&mut account, demand(500, 50));
    assert_eq!(refusal(&account, demand(100, 50)), (LimitKind::Tokens, 600, 150, 50, Some(10)));
    let second = take(&mut account, demand(10, 0));
    // Two are in flight too, but the second request a minute is longer to wait for.
    assert_eq!(refusal(&account, demand(1, 0)), (LimitKind::Requests, 2, 1, 0, Some(30)));
    account.refresh(&limits(Some(600), None, Some(2)), Duration::ZERO);
    assert_eq!(refusal(&account, demand(1, 0)), (LimitKind::Concurrency, 2, 1, 0, Some(1)));
    account.settle(&second, used(10, 0), Duration::ZERO);
    assert!(account.check(&demand(1, 0)).is_ok());
    let three = Demand { sequences: 3, ..demand(1, 0) };
    assert_eq!(refusal(&account, three), (LimitKind::Concurrency, 2, 3, 1, None));
}

#[test]
fn input_and_output_are_limited_apart() {
    let both = Limits {
        input_tokens_per_minute: Some(100),
        output_tokens_per_minute: Some(60),
        ..Limits::default()
    };
    let mut account = account(&both);
    let hold = take(&mut account, demand(90, 10));
    assert_eq!(refusal(&account, demand(11, 0)), (LimitKind::InputTokens, 100, 11, 10, Some(1)));
    assert_eq!(refusal(&account, demand(0, 51)), (LimitKind::OutputTokens, 60, 51, 50, Some(1)));
    assert_eq!(refusal(&account, demand(101, 61)).4, None);
    account.settle(&hold, used(90, 4), Duration::ZERO);
    let left: Vec<u64> = account.token_states().map(|state| state.remaining).collect();
    assert_eq!(left, [10, 56]);
}

#[test]
fn settling_gives_back_what_was_not_used_and_takes_what_was_used_beyond() {
    let mut account = account(&limits(Some(1_000), None, None));
    let hold = take(&mut account, demand(100, 50));
    assert_eq!((hold.tokens[0], hold.covers), (150, Some(50)));
    assert_eq!(remaining(&account), 850);
    account.settle(&hold, used(100, 190), Duration::ZERO);
    assert_eq!(remaining(&account), 710);
    let hold = take(&mut account, demand(100, 50));
    account.settle(&hold, used(10, 0), Duration::ZERO);
    assert_eq!(remaining(&account), 700);
    let hold = take(&mut account, demand(100, 50));
    account.abandon(&hold, Duration::ZERO);
    assert_eq!(remaining(&account), 700);
}

/// Of several limits the tightest bounds what is covered, and by how much that may grow.
#[test]
fn an_answer_grows_as_far_as_each_limit_on_output_has_room() {
    let three = Limits {
        tokens_per_minute: Some(1_000),
        input_tokens_per_minute: Some(100),
        output_tokens_per_minute: Some(80),
        ..Limits::default()
    };
    let mut account = account(&three);
    let mut hold = take(&mut account, demand(100, 500));
    assert_eq!((hold.tokens, hold.covers), ([600, 100, 80], Some(80)));
    assert_eq!(account.room_to_grow(Duration::ZERO), 10, "an eighth of the output's limit");
    account.grow(&mut hold, 10);
    assert_eq!((hold.tokens, account.room_to_grow(Duration::ZERO)), ([610, 100, 90], 0));
    account.settle(&hold, used(100, 90), Duration::ZERO);
    let left: Vec<u64> = account.token_states().map(|state| state.remaining).collect();
    assert_eq!((left, account.room_to_grow(SECOND)), (vec![810, 0, 0], 1));
}

#[test]
fn a_limit_that_appears_gives_no_burst_and_one_that_goes_frees() {
    let none = Limits::default();
    let one_a_second = limits(Some(60), None, None);
    let mut account = account(&none);
    let (early, late) = (take(&mut account, demand(1_000_000, 0)), take(&mut account, demand(500, 0)));
    account.settle(&early, used(1_000_000, 0), Duration::ZERO);
    account.refresh(&one_a_second, Duration::ZERO);
    assert_eq!(refusal(&account, demand(1, 0)), (LimitKind::Tokens, 60, 1, 0, Some(1)));
    account.refresh(&one_a_second, 2 * SECOND);
    assert!(account.check(&demand(2, 0)).is_ok());
    // What was admitted without a limit is counted when it ends, down to the stated debt.
    account.settle(&late, used(500, 0), 2 * SECOND);
    assert_eq!(refusal(&account, demand(1, 0)), (LimitKind::Tokens, 60, 1, 0, Some(16)));
    account.refresh(&none, 2 * SECOND);
    assert!(account.check(&demand(1_000, 0)).is_ok());
}

#[test]
fn an_unused_account_is_forgotten_only_when_a_limit_set_then_would_find_a_full_bucket() {
    let mut account = account(&Limits::default());
    assert!(account.is_idle(Duration::ZERO));
    let hold = take(&mut account, demand(1, 0));
    account.abandon(&hold, SECOND);
    assert!(!account.is_idle(59 * SECOND));
    assert!(account.is_idle(60 * SECOND));
    account.refresh(&limits(Some(60), None, None), 60 * SECOND);
    assert_eq!(remaining(&account), 60);
}
