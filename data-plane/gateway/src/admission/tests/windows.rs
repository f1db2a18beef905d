//! The promise on limits, for every account and kind at once, against a model that keeps every request apart.

use proptest::prelude::*;

use super::*;

/// A model that has limits of its own, and one that has none.
const MODELS: [&str; 2] = [MODEL, "another"];

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Ask {
        model: usize,
        prompt: u64,
        max: u64,
        choices: u64,
    },
    /// Tokens arrive, one after the other, until they are too many.
    Arrive {
        which: usize,
        tokens: u64,
    },
    Settle(usize),
    Drop(usize),
    /// The tenant's, the tenant's on the model, the key's, the key's on the model.
    Change([u64; 4]),
}

fn step() -> impl Strategy<Value = Step> {
    let limit = || 20u64..300;
    prop_oneof![
        3 => (0u64..40_000).prop_map(Step::Wait),
        6 => (0usize..2, 0u64..40, 0u64..60, 1u64..3)
            .prop_map(|(model, prompt, max, choices)| Step::Ask { model, prompt, max, choices }),
        6 => (any::<usize>(), 0u64..=60).prop_map(|(which, tokens)| Step::Arrive { which, tokens }),
        4 => any::<usize>().prop_map(Step::Settle),
        1 => any::<usize>().prop_map(Step::Drop),
        1 => (limit(), limit(), limit(), limit()).prop_map(|(a, b, c, d)| Step::Change([a, b, c, d])),
    ]
}

/// Different kinds from one number.
fn limits(size: u64) -> Limits {
    Limits {
        tokens_per_minute: Some(size),
        input_tokens_per_minute: Some(size * 3 / 4),
        output_tokens_per_minute: Some(size * 2 / 3),
        requests_per_minute: Some(size),
        concurrent_sequences: Some(size / 10),
        ..Limits::default()
    }
}

fn config_of(sizes: [u64; 4]) -> CurrentConfig {
    let [tenant, tenant_on_model, key, key_on_model] = sizes.map(limits);
    config(|c| {
        let of_model = |limits| [(MODEL.to_owned(), limits)].into();
        (c.resources.tenants[0].limits, c.resources.leases[0].share) = (tenant, tenant);
        c.resources.tenants[0].model_limits = of_model(tenant_on_model);
        c.resources.leases[0].model_shares = of_model(tenant_on_model);
        c.resources.keys[0].limits = key;
        c.resources.keys[0].model_limits = of_model(key_on_model);
    })
}

struct Running {
    reservation: Reservation,
    model: usize,
    prompt: u64,
    max: u64,
    arrived: u64,
    may_go_on: bool,
}

struct Settled {
    at_ms: u64,
    model: usize,
    prompt: u64,
    generated: u64,
}

/// Limits with their beginnings, and everything that was settled.
struct Naive {
    sizes: Vec<(u64, [u64; 4])>,
    settled: Vec<Settled>,
}

impl Naive {
    fn check(&self) -> Result<(), TestCaseError> {
        type Kind = (fn(&Limits) -> Option<u64>, fn(&Settled) -> u64);
        let kinds: [Kind; 3] = [
            (|limits| limits.tokens_per_minute, |settled| settled.prompt + settled.generated),
            (|limits| limits.input_tokens_per_minute, |settled| settled.prompt),
            (|limits| limits.output_tokens_per_minute, |settled| settled.generated),
        ];
        for scope in 0..4 {
            for (limit_of, tokens_of) in kinds {
                let limit_at: Vec<(u64, u64)> = self
                    .sizes
                    .iter()
                    .map(|(since_ms, sizes)| (*since_ms, limit_of(&limits(sizes[scope])).unwrap()))
                    .collect();
                // The accounts on the model see its requests alone.
                let counted = self.settled.iter().filter(|settled| scope % 2 == 0 || settled.model == 0);
                let amounts: Vec<(u64, u64)> =
                    counted.map(|settled| (settled.at_ms, tokens_of(settled))).collect();
                check_windows(&limit_at, &amounts)?;
            }
        }
        Ok(())
    }
}

/// In every stretch of time: at most what the limits in force earned in it, one burst, and the debt.
fn check_windows(limit_at: &[(u64, u64)], amounts: &[(u64, u64)]) -> Result<(), TestCaseError> {
    let highest =
        |until_ms: u64| limit_at.iter().filter(|limit| limit.0 <= until_ms).map(|limit| limit.1).max();
    for (first, &(from_ms, _)) in amounts.iter().enumerate() {
        let burst = highest(from_ms).unwrap();
        let mut sum = 0;
        for &(to_ms, tokens) in &amounts[first..] {
            sum += tokens;
            let earned: u64 = limit_at
                .iter()
                .enumerate()
                .map(|(at, &(since_ms, limit))| {
                    let until_ms = limit_at.get(at + 1).map_or(to_ms, |next| next.0).min(to_ms);
                    until_ms.saturating_sub(since_ms.max(from_ms)) * limit
                })
                .sum();
            let bound_scaled = earned + (burst + highest(to_ms).unwrap() / 4) * 60_000;
            prop_assert!(sum * 60_000 <= bound_scaled, "{sum} from {from_ms} to {to_ms} ms");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Requests of several models and choices, ended in any order or dropped, while limits change: no limit of any kind
    /// is exceeded in any stretch of time, a refused request changes nothing, and at the end nothing is held.
    #[test]
    fn no_account_is_exceeded_and_nothing_stays(first in 100u64..300, steps in prop::collection::vec(step(), 1..100)) {
        let desk = Desk::new();
        let mut sizes = [first; 4];
        let mut current = config_of(sizes);
        let mut naive = Naive { sizes: vec![(0, sizes)], settled: Vec::new() };
        let mut running: Vec<Running> = Vec::new();
        for step in steps {
            match step {
                Step::Wait(ms) => desk.wait(ms),
                Step::Change(new) => {
                    sizes = new;
                    current = config_of(sizes);
                    naive.sizes.push((desk.now_ms(), sizes));
                    // The next request applies them; one that can never be admitted does nothing else.
                    for model in MODELS {
                        prop_assert!(desk.ask_for(&current, model, 1_000_000, 0).is_err());
                    }
                }
                Step::Ask { model, prompt, max, choices } => {
                    let principal = Principal { tenant: tenant(), key: key() };
                    let size = RequestSize { prompt_tokens: prompt, max_tokens: max, choices };
                    let request = Request { principal, model: MODELS[model], version: version(), size };
                    let admitted = desk.admission.admit(&current.load(), request);
                    match admitted {
                        Ok((reservation, _)) => {
                            let max = max * choices;
                            running.push(Running { reservation, model, prompt, max, arrived: 0, may_go_on: true });
                        }
                        Err(refusal) => {
                            let again = desk.admission.admit(&current.load(), request).unwrap_err();
                            prop_assert_eq!(again.limits, refusal.limits);
                        }
                    }
                }
                Step::Arrive { which, tokens } => if !running.is_empty() {
                    let which = which % running.len();
                    let Running { reservation, arrived, max, may_go_on, .. } = &mut running[which];
                    for _ in 0..tokens {
                        if *arrived == *max || !*may_go_on {
                            break;
                        }
                        // The one that is too many is not generated here: what a worker computes beyond is for the hammer.
                        *may_go_on = reservation.allowance().arrived(1);
                        *arrived += u64::from(*may_go_on);
                    }
                },
                Step::Settle(which) => if !running.is_empty() {
                    let Running { reservation, model, prompt, arrived: generated, may_go_on, .. } =
                        running.swap_remove(which % running.len());
                    reservation.settle(prompt, generated, may_go_on);
                    naive.settled.push(Settled { at_ms: desk.now_ms(), model, prompt, generated });
                },
                Step::Drop(which) => if !running.is_empty() {
                    drop(running.swap_remove(which % running.len()));
                },
            }
        }
        naive.check()?;
        drop(running);
        prop_assert_eq!(desk.admission.in_flight(), 0);
        desk.wait(60_000 * 20);
        for model in MODELS {
            let states = desk.ask_for(&current, model, 1_000_000, 0).unwrap_err().limits;
            let lowest = sizes.iter().enumerate().filter(|(at, _)| model == MODEL || at % 2 == 0).map(|(_, size)| *size);
            let lowest = lowest.min().unwrap();
            prop_assert_eq!(states.requests.unwrap().remaining, lowest);
            prop_assert_eq!(states.tokens.unwrap().remaining, lowest * 2 / 3, "output is the tightest");
        }
    }
}
