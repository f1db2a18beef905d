use std::sync::atomic::{AtomicU64, Ordering};

use weir_schemas::config_snapshot::{ConfigSnapshot, Limits};
use weir_schemas::ids::GatewayId;

use super::*;
use crate::indexed_config::CurrentConfig;
use crate::testing::{Issuer, MODEL, key, snapshot, tenant, version};

mod windows;

fn gateway() -> GatewayId {
    GatewayId::from_u128(9)
}

fn config(change: impl FnOnce(&mut ConfigSnapshot)) -> CurrentConfig {
    let mut snapshot = snapshot(&Issuer::new(1), gateway(), "sha256:00");
    change(&mut snapshot);
    CurrentConfig::new(gateway(), Arc::new(snapshot))
}

fn tokens(tokens: u64) -> Limits {
    Limits { tokens_per_minute: Some(tokens), ..Limits::default() }
}

/// Admission with a clock that the test moves, in milliseconds.
struct Desk {
    admission: Arc<Admission>,
    now_ms: Arc<AtomicU64>,
}

impl Desk {
    fn new() -> Self {
        let now_ms = Arc::new(AtomicU64::new(0));
        let read = now_ms.clone();
        let stopwatch = Stopwatch::new(move || Duration::from_millis(read.load(Ordering::Relaxed)));
        Self { admission: Arc::new(Admission::new(History::default(), stopwatch)), now_ms }
    }

    fn wait(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    fn ask_for(&self, config: &CurrentConfig, model: &str, prompt_tokens: u64, max_tokens: u64) -> Admitted {
        let principal = Principal { tenant: tenant(), key: key() };
        let size = RequestSize { prompt_tokens, max_tokens, choices: 1 };
        let request = Request { principal, model, version: version(), size };
        self.admission.admit(&config.load(), request)
    }

    fn ask(&self, config: &CurrentConfig, prompt_tokens: u64, max_tokens: u64) -> Admitted {
        self.ask_for(config, MODEL, prompt_tokens, max_tokens)
    }

    /// Tokens left on the tightest limit.
    fn remaining(&self, config: &CurrentConfig) -> u64 {
        let (reservation, limits) = self.ask(config, 0, 0).unwrap();
        drop(reservation);
        limits.tokens.unwrap().remaining
    }
}

type Admitted = Result<(Reservation, LimitStates), Box<Refusal>>;

/// Whose limit, which, its size, what was asked for.
fn refusal(admitted: Admitted) -> (LimitScope, LimitKind, u64, u64) {
    match admitted.unwrap_err().reason {
        RefusalReason::Limit { scope, kind, excess } => (scope, kind, excess.limit, excess.requested),
        RefusalReason::NoLease => panic!("there is a lease"),
    }
}

#[test]
fn the_lease_is_the_limit_and_without_one_there_is_none() {
    let desk = Desk::new();
    let leased = config(|c| c.resources.leases[0].share = tokens(100));
    assert!(desk.ask(&leased, 90, 10).is_ok());
    assert_eq!(refusal(desk.ask(&leased, 101, 1)), (LimitScope::Tenant, LimitKind::Tokens, 100, 101));
    let without = config(|c| c.resources.leases.clear());
    let elsewhere = config(|c| c.resources.leases[0].gateway = GatewayId::from_u128(10));
    for config in [without, elsewhere] {
        let refusal = desk.ask(&config, 1, 1).unwrap_err();
        assert_eq!(
            (refusal.reason, refusal.retry_after()),
            (RefusalReason::NoLease, Some(NO_LEASE_RETRY_AFTER))
        );
    }
}

#[test]
fn a_reservation_is_ended_once_settled_or_dropped() {
    let desk = Desk::new();
    let config = config(|c| c.resources.leases[0].share = tokens(1_000));
    let (settled, _) = desk.ask(&config, 100, 50).unwrap();
    let (dropped, _) = desk.ask(&config, 100, 50).unwrap();
    assert_eq!(desk.admission.in_flight(), 2);
    assert_eq!(desk.remaining(&config), 700);
    settled.settle(100, 20, true);
    drop(dropped);
    assert_eq!(desk.admission.in_flight(), 0);
    assert_eq!(desk.remaining(&config), 880);
}

#[test]
fn the_tighter_of_tenant_and_key_holds_and_a_refusal_takes_from_neither() {
    let desk = Desk::new();
    let narrow = config(|c| {
        c.resources.leases[0].share = tokens(1_000);
        c.resources.keys[0].limits = tokens(100);
    });
    let refused = desk.ask(&narrow, 101, 0);
    assert_eq!(refused.as_ref().unwrap_err().limits.tokens.map(|tokens| tokens.remaining), Some(100));
    assert_eq!(refusal(refused), (LimitScope::Key, LimitKind::Tokens, 100, 101));
    assert_eq!(desk.remaining(&narrow), 100);
    let (reservation, limits) = desk.ask(&narrow, 60, 0).unwrap();
    assert_eq!(limits.tokens.map(|tokens| tokens.remaining), Some(40));
    reservation.settle(60, 0, false);
    let wide = config(|c| c.resources.leases[0].share = tokens(1_000));
    assert_eq!(desk.remaining(&wide), 940);
}

#[test]
fn a_models_limits_hold_for_its_requests_beside_the_limits_over_all() {
    let desk = Desk::new();
    let of_model = |limits| [(MODEL.to_owned(), limits)].into();
    let input = Limits { input_tokens_per_minute: Some(50), ..Limits::default() };
    let config = config(|c| {
        c.resources.leases[0].share = tokens(1_000);
        c.resources.tenants[0].model_limits = of_model(tokens(500));
        c.resources.leases[0].model_shares = of_model(tokens(300));
        c.resources.keys[0].model_limits = of_model(input);
    });
    assert_eq!(refusal(desk.ask(&config, 51, 0)), (LimitScope::KeyOnModel, LimitKind::InputTokens, 50, 51));
    let held = desk.ask(&config, 10, 291).unwrap().0;
    let share = (LimitScope::TenantOnModel, LimitKind::Tokens, 300, 1);
    assert_eq!(refusal(desk.ask(&config, 1, 0)), share, "the lower of share and limit");
    drop(held);
    desk.ask(&config, 40, 200).unwrap().0.settle(40, 200, true);
    assert_eq!(refusal(desk.ask(&config, 11, 0)), (LimitScope::KeyOnModel, LimitKind::InputTokens, 50, 11));
    // Another model is under the limits over all alone.
    let (other, limits) = desk.ask_for(&config, "another", 700, 0).unwrap();
    assert_eq!(limits.tokens.unwrap().remaining, 1_000 - 240 - 700);
    drop(other);
    assert_eq!(
        refusal(desk.ask_for(&config, "another", 800, 0)),
        (LimitScope::Tenant, LimitKind::Tokens, 1_000, 800)
    );
}

#[test]
fn a_limit_set_on_a_model_in_use_gives_no_burst() {
    let desk = Desk::new();
    let free = config(|_| ());
    desk.ask(&free, 5_000, 0).unwrap().0.settle(5_000, 0, true);
    let limited = config(|c| {
        c.resources.tenants[0].model_limits = [(MODEL.to_owned(), tokens(600))].into();
    });
    desk.wait(2_000);
    assert_eq!(desk.remaining(&limited), 20);
    assert_eq!(refusal(desk.ask(&limited, 21, 0)), (LimitScope::TenantOnModel, LimitKind::Tokens, 600, 21));
    assert!(desk.ask_for(&limited, "another", 600, 0).is_ok());
}

#[test]
fn a_reservation_follows_what_answers_lately_needed() {
    let desk = Desk::new();
    let config = config(|c| c.resources.leases[0].share = tokens(100_000));
    for _ in 0..8 {
        desk.ask(&config, 0, 4_000).unwrap().0.settle(0, 10, true);
    }
    let before = desk.remaining(&config);
    let (_held, limits) = desk.ask(&config, 0, 4_000).unwrap();
    assert_eq!(before - limits.tokens.unwrap().remaining, 10);
}

/// A generous `max_tokens` refuses nobody: many who ask for far more than a minute's limit are admitted by what answers
/// need. Those that do need more take it while there is any, and all of it is given back.
#[test]
fn a_generous_max_tokens_refuses_nobody_and_long_answers_end_where_the_limit_does() {
    let desk = Desk::new();
    let config = config(|c| c.resources.leases[0].share = tokens(800));
    for _ in 0..8 {
        desk.ask(&config, 5, 100_000).unwrap().0.settle(5, 10, true);
        desk.wait(60_000);
    }
    let all: Vec<Reservation> = (0..40).map(|_| desk.ask(&config, 10, 100_000).unwrap().0).collect();
    assert!(desk.ask(&config, 10, 100_000).is_err(), "forty times twenty are eight hundred");
    // Each as far as it holds, and one beyond it: an eighth of the limit together, sixteen at a time.
    let arrived = |reservation: &Reservation, most: u64| {
        let allowance = reservation.allowance();
        (0..most).take_while(|_| allowance.arrived(1)).count()
    };
    assert!(all.iter().all(|reservation| arrived(reservation, 10) == 10));
    assert_eq!(arrived(&all[0], 1_000), 100);
    assert_eq!(arrived(&all[1], 1_000), 0);
    let mut all = all.into_iter();
    all.next().unwrap().settle(10, 110, true);
    assert_eq!(desk.admission.in_flight(), 39);
    drop(all.collect::<Vec<_>>());
    assert_eq!((desk.admission.in_flight(), desk.remaining(&config)), (0, 680));
    // Who ended late holds nothing, and takes nothing.
    let (reservation, _) = desk.ask(&config, 10, 10).unwrap();
    let allowance = reservation.allowance();
    reservation.settle(10, 10, true);
    assert!(allowance.arrived(10) && !allowance.arrived(1));
    assert_eq!(desk.remaining(&config), 660);
}
