use weir_schemas::config_snapshot::ConfigSnapshot;
use weir_schemas::ids::GatewayId;

use super::*;
use crate::indexed_config::CurrentConfig;
use crate::testing::{Issuer, key, snapshot, tenant, version};

fn gateway() -> GatewayId {
    GatewayId::from_u128(9)
}

fn config(change: impl FnOnce(&mut ConfigSnapshot)) -> CurrentConfig {
    let mut snapshot = snapshot(&Issuer::new(1), gateway(), "sha256:00");
    change(&mut snapshot);
    CurrentConfig::new(gateway(), Arc::new(snapshot))
}

fn share(tokens: u64) -> Limits {
    Limits { tokens_per_minute: Some(tokens), ..Limits::default() }
}

type Admitted = Result<(Reservation, LimitStates), Box<Refusal>>;

fn ask(admission: &Arc<Admission>, config: &CurrentConfig, prompt: u64, max: u64) -> Admitted {
    let principal = Principal { tenant: tenant(), key: key() };
    let size = RequestSize { prompt_tokens: prompt, max_tokens: max, choices: 1 };
    admission.admit(&config.load(), principal, version(), size, Duration::ZERO)
}

fn remaining(admission: &Arc<Admission>, config: &CurrentConfig) -> u64 {
    let (reservation, limits) = ask(admission, config, 0, 0).unwrap();
    drop(reservation);
    limits.tokens.unwrap().remaining
}

#[test]
fn the_lease_is_the_limit_and_without_one_there_is_none() {
    let admission = Arc::new(Admission::default());
    let leased = config(|c| c.resources.leases[0].share = share(100));
    assert!(ask(&admission, &leased, 90, 10).is_ok());
    assert_eq!(
        ask(&admission, &leased, 90, 11).unwrap_err().reason,
        RefusalReason::TooLarge { limit: 100, requested: 101 }
    );
    let without = config(|c| c.resources.leases.clear());
    assert_eq!(ask(&admission, &without, 1, 1).unwrap_err().reason, RefusalReason::NoLease);
    let elsewhere = config(|c| c.resources.leases[0].gateway = GatewayId::from_u128(10));
    assert_eq!(ask(&admission, &elsewhere, 1, 1).unwrap_err().reason, RefusalReason::NoLease);
}

#[test]
fn a_reservation_is_ended_once_settled_or_dropped() {
    let admission = Arc::new(Admission::default());
    let config = config(|c| c.resources.leases[0].share = share(1_000));
    let (settled, _) = ask(&admission, &config, 100, 50).unwrap();
    let (dropped, _) = ask(&admission, &config, 100, 50).unwrap();
    assert_eq!(admission.in_flight(), 2);
    assert_eq!(remaining(&admission, &config), 700);
    settled.settle(100, 20, true);
    drop(dropped);
    assert_eq!(admission.in_flight(), 0);
    assert_eq!(remaining(&admission, &config), 880);
}

#[test]
fn the_tighter_of_tenant_and_key_holds_and_a_refusal_takes_from_neither() {
    let admission = Arc::new(Admission::default());
    let config = config(|c| {
        c.resources.leases[0].share = share(1_000);
        c.resources.keys[0].limits = share(100);
    });
    let refusal = ask(&admission, &config, 101, 0).unwrap_err();
    assert_eq!(refusal.limits.tokens.map(|tokens| tokens.remaining), Some(100));
    assert_eq!(remaining(&admission, &config), 100);
    let (reservation, limits) = ask(&admission, &config, 60, 0).unwrap();
    assert_eq!(limits.tokens.map(|tokens| tokens.remaining), Some(40));
    reservation.settle(60, 0, false);
    let wide = super::tests::config(|c| c.resources.leases[0].share = share(1_000));
    assert_eq!(remaining(&admission, &wide), 940);
}

#[test]
fn a_reservation_follows_what_answers_lately_needed() {
    let admission = Arc::new(Admission::default());
    let config = config(|c| c.resources.leases[0].share = share(100_000));
    for _ in 0..8 {
        ask(&admission, &config, 0, 4_000).unwrap().0.settle(0, 10, true);
    }
    let before = remaining(&admission, &config);
    let (_held, limits) = ask(&admission, &config, 0, 4_000).unwrap();
    assert_eq!(before - limits.tokens.unwrap().remaining, 10);
}
