//! Whatever order and repetition records come in, and from however many senders at once: the roll-ups are the sums
//! of the charges, and each request is charged once.

use proptest::prelude::*;
use weir_ledger::{Range, price_unpriced, verify};
use weir_schemas::ids::{GatewayId, KeyId, TenantId};
use weir_schemas::rpc::ledger::Record;

use crate::support::{Ledger, UNPRICED, VERSION, at, charge_of, clock};

/// One request: tenant, key, second of arrival, tokens, whether its version has a price.
type Drawn = (u8, u8, u16, u16, u16, bool);

fn drawn() -> impl Strategy<Value = Drawn> {
    (0..3u8, 0..2u8, 0..200u16, 0..500u16, 0..500u16, any::<bool>())
}

fn record(
    sender: GatewayId,
    sequence: u64,
    (tenant, key, second, prompt, generated, priced): Drawn,
) -> Record {
    let number = sender.as_u128() * 10_000 + u128::from(sequence);
    charge_of(sender, sequence, number, |data| {
        data.tenant = TenantId::from_u128(u128::from(tenant) + 100);
        data.key = KeyId::from_u128(u128::from(key) + 100);
        data.received_at = at(i64::from(second));
        data.prompt_tokens = u64::from(prompt);
        data.cached_prompt_tokens = u64::from(prompt / 3);
        data.generated_tokens = u64::from(generated);
        data.version = if priced { VERSION } else { UNPRICED };
    })
}

/// Sends each batch order with its repeats; several senders at once.
async fn send(ledger: &Ledger, senders: &[(GatewayId, Vec<Vec<Record>>)]) {
    let sends = senders.iter().map(async |(sender, batches)| {
        for batch in batches {
            ledger.try_append(&sender.to_string(), batch.clone()).await.unwrap();
        }
    });
    let mut running = Vec::new();
    for send in sends {
        running.push(send);
    }
    join_all(running).await;
}

async fn join_all(futures: Vec<impl Future<Output = ()>>) {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Per sender its requests, and an order in which they are sent (with repeats).
type Senders = Vec<(Vec<Drawn>, Vec<(usize, usize)>)>;

fn senders() -> impl Strategy<Value = Senders> {
    let one =
        (prop::collection::vec(drawn(), 1..40), prop::collection::vec((any::<usize>(), 1..12usize), 0..10));
    prop::collection::vec(one, 1..4)
}

/// Random slices of the sequence first, in drawn order, then all of it, so that everything arrives.
fn batches(sender: GatewayId, drawn: &[Drawn], slices: &[(usize, usize)]) -> Vec<Vec<Record>> {
    let records: Vec<Record> =
        (1..).zip(drawn).map(|(sequence, request)| record(sender, sequence, *request)).collect();
    let mut batches: Vec<Vec<Record>> = slices
        .iter()
        .map(|(start, length)| records.iter().skip(start % records.len()).take(*length).cloned().collect())
        .collect();
    batches.push(records);
    batches
}

#[test]
fn roll_ups_are_the_sums_of_charges_whatever_is_sent_in_whatever_order() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let ledger = runtime.block_on(Ledger::start());
    let case = std::cell::Cell::new(0u128);
    let requests = std::cell::Cell::new(0usize);
    let config = ProptestConfig { cases: 24, max_shrink_iters: 50, ..ProptestConfig::default() };
    proptest!(config, |(drawn in senders())| {
        case.set(case.get() + 1);
        let sending: Vec<(GatewayId, Vec<Vec<Record>>)> = drawn
            .iter()
            .enumerate()
            .map(|(index, (requests, slices))| {
                let sender = GatewayId::from_u128(case.get() * 10 + index as u128);
                (sender, batches(sender, requests, slices))
            })
            .collect();
        requests.set(requests.get() + drawn.iter().map(|(requests, _)| requests.len()).sum::<usize>());
        runtime.block_on(async {
            send(&ledger, &sending).await;
            let report = verify(&ledger.pool, Range { from: at(-3600), to: at(3600) }).await.unwrap();
            // There are no executions in this test; everything else must agree.
            let differing: Vec<_> = report.differences.listed.iter().filter(|found| found.what != "charged but not executed").collect();
            prop_assert!(differing.is_empty() && report.gaps.is_empty() && report.duplicates.is_empty(), "{:?} {:?}", differing, report.gaps);
            prop_assert_eq!(report.counts.charges + report.counts.unpriced, i64::try_from(requests.get()).unwrap());
            Ok(())
        })?;
    });
    runtime.block_on(async {
        ledger.price(UNPRICED, at(-3600), "0.7", "0.1", "2.3").await;
        price_unpriced(&ledger.pool, &clock()).await.unwrap();
        for (charges, roll_up) in [
            ("amount", "amount"),
            ("prompt_tokens", "input_tokens"),
            ("cached_prompt_tokens", "input_cached_tokens"),
            ("generated_tokens", "output_tokens"),
            ("1", "requests"),
        ] {
            let rows = ledger.sum(charges, "ledger_charges").await;
            assert_eq!(rows, ledger.sum(roll_up, "ledger_usage_minutes").await, "{charges}");
            assert!(rows > 0.into());
        }
        assert_eq!(ledger.count("ledger_unpriced").await, 0);
    });
}
