//! Who is served when there is not enough for all.

use weir_engine::{Class, SequenceId, SequenceRequest, TenantIndex};

use crate::support::{Harness, request};

fn of_tenant(tenant: u64, weight: u32, seed: u64, prompt_len: usize, max_tokens: u32) -> SequenceRequest {
    let tenant = TenantIndex(tenant);
    let seed = seed + tenant.0 * 100_000;
    SequenceRequest { tenant, tenant_weight: weight, ..request(seed, prompt_len, max_tokens) }
}

fn batch(request: SequenceRequest) -> SequenceRequest {
    SequenceRequest { class: Class::Batch, ..request }
}

/// Tokens generated for some sequences so far.
fn generated(harness: &Harness, ids: &[SequenceId]) -> usize {
    ids.iter().map(|id| harness.outcomes[id].tokens.len()).sum()
}

#[test]
fn two_tenants_of_equal_weight_get_equal_service_whatever_their_request_count() {
    let mut harness = Harness::new(400, 8);
    // One tenant queues ten times as much, and first.
    let many: Vec<_> = (0..200).map(|seed| harness.add(of_tenant(1, 1, seed, 20, 30))).collect();
    let few: Vec<_> = (0..40).map(|seed| harness.add(of_tenant(2, 1, seed, 20, 30))).collect();
    while generated(&harness, &few) < 40 * 30 * 3 / 4 {
        harness.step();
    }
    let (many_served, few_served) = (generated(&harness, &many), generated(&harness, &few));
    let ratio = many_served as f64 / few_served as f64;
    assert!((0.8..1.25).contains(&ratio), "{many_served} {few_served}");
    harness.run(3000);
}

#[test]
fn seats_are_shared_from_the_first_step_on() {
    let mut harness = Harness::new(400, 8);
    let first: Vec<_> = (0..20).map(|seed| harness.add(of_tenant(1, 1, seed, 20, 100))).collect();
    let second: Vec<_> = (0..20).map(|seed| harness.add(of_tenant(2, 1, seed, 20, 100))).collect();
    for _ in 0..3 {
        harness.step();
    }
    let seated = |ids: &[SequenceId]| ids.iter().filter(|id| !harness.outcomes[id].tokens.is_empty()).count();
    assert_eq!((seated(&first), seated(&second)), (4, 4));
    harness.run(1000);
}

#[test]
fn weights_divide_service() {
    let mut harness = Harness::new(400, 8);
    let heavy: Vec<_> = (0..150).map(|seed| harness.add(of_tenant(1, 3, seed, 20, 20))).collect();
    let light: Vec<_> = (0..150).map(|seed| harness.add(of_tenant(2, 1, seed, 20, 20))).collect();
    while generated(&harness, &heavy) < 100 * 20 {
        harness.step();
    }
    let ratio = generated(&harness, &heavy) as f64 / generated(&harness, &light) as f64;
    assert!((2.5..3.6).contains(&ratio), "{ratio}");
    harness.run(3000);
}

#[test]
fn a_tenant_is_served_in_order_of_arrival() {
    let mut harness = Harness::new(100, 1);
    let ids: Vec<_> = (0..10).map(|seed| harness.add(request(seed, 20, 5))).collect();
    harness.run(200);
    assert_eq!(harness.finished, ids);
}

#[test]
fn interactive_goes_before_batch_and_takes_its_seat() {
    let mut harness = Harness::new(100, 2);
    let slow: Vec<_> = (0..4).map(|seed| harness.add(batch(request(seed, 20, 100)))).collect();
    for _ in 0..10 {
        harness.step();
    }
    let quick = harness.add(request(50, 20, 10));
    for _ in 0..10 {
        harness.step();
    }
    assert_eq!(harness.finished, [quick], "no batch sequence had to end first");
    assert_eq!(harness.engine.counters().preemptions, 1);
    harness.run(1000);
    assert_eq!(harness.finished.len(), slow.len() + 1);
}

#[test]
fn interactive_takes_pages_from_batch() {
    let mut harness = Harness::new(20, 4);
    harness.add(batch(request(1, 250, 60)));
    for _ in 0..10 {
        harness.step();
    }
    let quick = harness.add(request(50, 100, 10));
    for _ in 0..11 {
        harness.step();
    }
    assert_eq!(harness.finished, [quick]);
    harness.run(500);
    harness.assert_all_free();
}

#[test]
fn batch_gives_its_pages_before_interactive() {
    let mut harness = Harness::new(20, 4);
    let background = harness.add(batch(request(1, 100, 200)));
    harness.step();
    let newer = harness.add(request(2, 100, 200));
    harness.run(1000);
    assert!(harness.usage(background).preemptions > 0);
    assert_eq!(harness.usage(newer).preemptions, 0, "although it is the newest");
    assert_eq!(harness.finished, [newer, background]);
}

#[test]
fn batch_gets_its_floor_under_endless_interactive_load() {
    let mut harness = Harness::new(400, 4);
    let background: Vec<_> = (0..100).map(|seed| harness.add(batch(request(seed, 20, 20)))).collect();
    let mut interactive = Vec::new();
    for step in 0..3000 {
        while harness.engine.load().waiting_interactive < 4 {
            interactive.push(harness.add(request(10_000 + interactive.len() as u64, 20, 20)));
        }
        harness.step();
        assert!(step > 0 || harness.engine.load().running == 4);
    }
    let service = |ids: &[SequenceId]| generated(&harness, ids) as f64;
    let share = service(&background) / (service(&background) + service(&interactive));
    let floor = f64::from(harness.config.batch_floor_permille) / 1000.0;
    assert!(share >= floor * 0.8, "{share}");
    assert!(share <= floor * 2.5, "interactive still comes first: {share}");
    for id in harness.unfinished() {
        harness.cancel(id);
    }
    harness.run(10);
    harness.assert_all_free();
}

#[test]
fn a_large_head_is_passed_over_but_not_starved() {
    let bypass_max = 6;
    let mut harness = Harness::with_config(40, 8, |config| config.bypass_max = bypass_max);
    // Keeps some pages busy for long enough.
    for seed in 0..2 {
        harness.add(request(seed, 20, 40));
    }
    harness.step();
    let large = harness.add(request(10, 590, 10));
    let small: Vec<_> = (0..60).map(|seed| harness.add(request(100 + seed, 20, 20))).collect();
    harness.step();
    assert!(harness.outcomes[&large].tokens.is_empty());
    assert!(harness.engine.load().running > 2, "small ones do not wait for the large one");
    harness.run(2000);
    let before_large = harness.finished.iter().position(|id| *id == large).unwrap();
    assert!(before_large <= 2 + bypass_max as usize, "{before_large} finished before it");
    assert_eq!(harness.finished.len(), small.len() + 3);
    assert_eq!(harness.usage(large).preemptions, 0);
}

#[test]
fn a_large_head_is_not_starved_by_the_other_class() {
    let mut harness = Harness::with_config(40, 8, |config| config.bypass_max = 2);
    for seed in 0..2 {
        harness.add(request(seed, 20, 40));
    }
    harness.step();
    let large = harness.add(request(10, 590, 10));
    for seed in 0..30 {
        harness.add(batch(request(100 + seed, 20, 20)));
    }
    for _ in 0..3 {
        harness.step();
    }
    assert_eq!(harness.engine.load().running, 4, "two that were there, two that passed");
    harness.run(2000);
    let before_large = harness.finished.iter().position(|id| *id == large).unwrap();
    assert!(before_large <= 4, "{before_large} finished before it");
}

#[test]
fn who_has_held_a_seat_long_enough_yields_to_a_tenant_served_less() {
    let quantum = 50;
    let mut harness = Harness::with_config(400, 2, |config| config.seat_quantum_steps = quantum);
    for seed in 0..2 {
        harness.add(of_tenant(1, 1, seed, 20, 1000));
    }
    for _ in 0..10 {
        harness.step();
    }
    let other = harness.add(of_tenant(2, 1, 0, 20, 10));
    let steps = (0..1000).find(|_| {
        harness.step();
        harness.finished == [other]
    });
    assert!(steps.is_some_and(|steps| steps < quantum as usize + 40), "{steps:?}");
    harness.run(3000);
    assert!(harness.engine.counters().preemptions >= 1);
}

#[test]
fn the_most_served_tenant_gives_its_pages_first() {
    let mut harness = Harness::new(30, 4);
    let greedy: Vec<_> = (0..3).map(|seed| harness.add(of_tenant(1, 1, seed, 64, 150))).collect();
    for _ in 0..40 {
        harness.step();
    }
    let modest = harness.add(of_tenant(2, 1, 0, 64, 150));
    harness.run(2000);
    assert!(greedy.iter().any(|id| harness.usage(*id).preemptions > 0));
    assert_eq!(harness.usage(modest).preemptions, 0, "although it is the newest");
}
