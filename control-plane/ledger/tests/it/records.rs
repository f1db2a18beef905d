//! Each kind of record, once, again, out of order, and not at all what it should be.

use weir_schemas::ids::{GatewayId, RequestId, TenantId};
use weir_schemas::records::{REJECTIONS_TOPIC, RejectionData, RejectionReason, RejectionRecord, USAGE_TOPIC};
use weir_schemas::rpc::ledger::Record;

use crate::support::{GATEWAY, Ledger, SECRET, TENANT, WORKER, at, charge, charge_of, execution};

#[tokio::test]
async fn the_same_record_three_times_is_charged_once() {
    let ledger = Ledger::start().await;
    for _ in 0..3 {
        assert_eq!(ledger.append([charge(1, |_| ())]).await, 1);
    }
    // And twice in one batch.
    assert_eq!(ledger.append([charge(2, |_| ()), charge(2, |_| ())]).await, 2);
    assert_eq!(ledger.count("ledger_charges").await, 2);
    assert_eq!(ledger.sum("requests", "ledger_usage_minutes").await, 2.into());
    assert_eq!(ledger.sum("finished", "ledger_goodput_minutes").await, 2.into());
    assert_eq!(ledger.count("ledger_dead_letters").await, 0);
    assert!(ledger.metrics().contains("weir_ledger_resent_records_total 3"), "{}", ledger.metrics());
}

#[tokio::test]
async fn the_watermark_is_the_end_of_the_contiguous_part() {
    let ledger = Ledger::start().await;
    assert_eq!(ledger.append([]).await, 0, "a sender never heard of");
    assert_eq!(ledger.append([charge(3, |_| ()), charge(5, |_| ())]).await, 0);
    assert_eq!(ledger.append([charge(1, |_| ())]).await, 1);
    assert_eq!(ledger.append([charge(2, |_| ())]).await, 3);
    assert_eq!(ledger.append([charge(6, |_| ()), charge(4, |_| ())]).await, 6);
    assert_eq!(ledger.append([]).await, 6);
    assert_eq!(ledger.count("ledger_charges").await, 6, "what came early was charged when it came");
}

#[tokio::test]
async fn what_cannot_be_read_passes_the_watermark_with_its_bytes_and_an_alert() {
    let ledger = Ledger::start().await;
    let broken = Record {
        sequence: 2,
        topic: USAGE_TOPIC.into(),
        key: "k".into(),
        payload: b"{\"id\": \xff\0".to_vec(),
    };
    let newer = Record {
        payload: charge(3, |_| ()).payload.iter().copied().chain(*b" ").collect(),
        topic: "weir.usage.v2".into(),
        ..charge(3, |_| ())
    };
    assert_eq!(ledger.append([charge(1, |_| ()), broken.clone(), newer, charge(4, |_| ())]).await, 4);
    assert_eq!(ledger.append([broken.clone()]).await, 4, "resent, it is kept once");
    let letters: Vec<(i64, String, Vec<u8>)> =
        sqlx::query_as("SELECT sequence, reason, payload FROM ledger_dead_letters ORDER BY sequence")
            .fetch_all(&ledger.pool)
            .await
            .unwrap();
    assert_eq!(letters.len(), 2);
    assert_eq!(letters[0], (2, "malformed".to_owned(), broken.payload));
    assert_eq!((letters[1].0, letters[1].1.as_str()), (3, "unknown_topic"));
    assert_eq!(ledger.count("ledger_charges").await, 2);
    assert!(ledger.metrics().contains("weir_ledger_dead_letters_total{reason=\"malformed\"} 1"));
}

#[tokio::test]
async fn one_request_is_charged_once_whatever_numbers_it_comes_under() {
    let ledger = Ledger::start().await;
    // The same request twice from one sender, and once more from another.
    let other = GatewayId::from_u128(99);
    assert_eq!(ledger.append([charge_of(GATEWAY, 1, 7, |_| ()), charge_of(GATEWAY, 2, 7, |_| ())]).await, 2);
    let from_other =
        ledger.try_append(&other.to_string(), vec![charge_of(other, 1, 7, |_| ())]).await.unwrap();
    assert_eq!(from_other, 1);
    // Another request under a number that was used.
    assert_eq!(ledger.append([charge_of(GATEWAY, 2, 8, |_| ()), charge_of(GATEWAY, 1, 9, |_| ())]).await, 2);
    assert_eq!(ledger.count("ledger_charges").await, 1);
    let reasons: Vec<(String, String, i64)> =
        sqlx::query_as("SELECT sender, reason, sequence FROM ledger_dead_letters ORDER BY 1, 2, 3")
            .fetch_all(&ledger.pool)
            .await
            .unwrap();
    let (gateway, other) = (GATEWAY.to_string(), other.to_string());
    let expected = [
        (gateway.clone(), "duplicate_event".to_owned(), 2),
        (gateway.clone(), "sequence_conflict".to_owned(), 1),
        (gateway, "sequence_conflict".to_owned(), 2),
        (other, "duplicate_event".to_owned(), 1),
    ];
    assert_eq!(reasons, expected);
    // Sent again as they were, they are nothing new.
    assert_eq!(ledger.append([charge_of(GATEWAY, 2, 7, |_| ()), charge_of(GATEWAY, 2, 8, |_| ())]).await, 2);
    assert_eq!(ledger.count("ledger_dead_letters").await, 4);
}

#[tokio::test]
async fn whatever_comes_under_a_number_that_is_taken_is_kept_with_its_bytes() {
    let ledger = Ledger::start().await;
    let broken = |sequence, payload: &[u8]| Record { payload: payload.to_vec(), ..charge(sequence, |_| ()) };
    // Malformed first, then what it should have been; and the other way round.
    assert_eq!(ledger.append([broken(1, b"{\"trunc"), charge(1, |_| ())]).await, 1);
    assert_eq!(ledger.append([charge(2, |_| ()), broken(2, b"{\"trunc")]).await, 2);
    assert_eq!(ledger.append([broken(2, b"{\"other"), broken(1, b"{\"trunc")]).await, 2);
    // Within one batch the first holds the number, and comes again as a resend.
    let again = || charge(3, |_| ());
    assert_eq!(ledger.append([again(), broken(3, b"{\"junk"), again()]).await, 3);
    let letters: Vec<(i64, String, Vec<u8>)> =
        sqlx::query_as("SELECT sequence, reason, payload FROM ledger_dead_letters ORDER BY dead_letter")
            .fetch_all(&ledger.pool)
            .await
            .unwrap();
    let expected = [
        (1, "malformed", b"{\"trunc".to_vec()),
        (1, "sequence_conflict", charge(1, |_| ()).payload),
        (2, "malformed", b"{\"trunc".to_vec()),
        (2, "malformed", b"{\"other".to_vec()),
        (3, "malformed", b"{\"junk".to_vec()),
    ];
    let mut letters: Vec<_> = letters
        .iter()
        .map(|(sequence, reason, payload)| (*sequence, reason.as_str(), payload.clone()))
        .collect();
    letters.sort_by_key(|letter| letter.0);
    let mut of_one: Vec<_> = letters.drain(..2).collect();
    of_one.sort_by_key(|letter| letter.1);
    assert_eq!(of_one, expected[..2]);
    assert_eq!(letters, expected[2..]);
    assert_eq!(ledger.count("ledger_charges").await, 2, "of numbers 2 and 3, which came whole first");
}

#[tokio::test]
async fn executions_and_rejections_are_stored_as_they_are() {
    let ledger = Ledger::start().await;
    let attempts =
        vec![execution(1, 1, |_| ()), execution(2, 1, |data| data.attempt = 2), execution(1, 1, |_| ())];
    assert_eq!(ledger.try_append(&WORKER.to_string(), attempts).await.unwrap(), 2);
    let row: (String, i64, i64, i64, i64, String) = sqlx::query_as(
        "SELECT request_id, attempt, cached_tokens, computed_tokens, generated_tokens, outcome FROM ledger_executions
         ORDER BY attempt LIMIT 1",
    )
    .fetch_one(&ledger.pool)
    .await
    .unwrap();
    assert_eq!(row, (RequestId::from_u128(1).to_string(), 1, 32, 8, 4, "stop".to_owned()));
    assert_eq!(ledger.count("ledger_executions").await, 2);

    let data = RejectionData {
        minute: at(-20),
        tenant: TENANT,
        requested_model: "model".into(),
        reason: RejectionReason::Capacity,
        count: 12,
        sequence: 1,
    };
    let event = RejectionRecord::new(format!("{GATEWAY}.1"), GATEWAY.to_string(), at(0), data);
    let payload = serde_json::to_vec(&event).unwrap();
    let rejection = Record { sequence: 1, topic: REJECTIONS_TOPIC.into(), key: String::new(), payload };
    assert_eq!(ledger.append([rejection.clone()]).await, 1);
    assert_eq!(ledger.append([rejection, charge(2, |data| data.requested_model = "model".into())]).await, 2);
    assert_eq!(ledger.sum("count", "ledger_rejections").await, 12.into());
    assert_eq!(ledger.sum("rejected", "ledger_goodput_minutes").await, 12.into());
    assert_eq!(ledger.sum("both_met", "ledger_goodput_minutes").await, 1.into());
}

#[tokio::test]
async fn what_is_no_batch_is_refused_and_nothing_of_it_kept() {
    let ledger = Ledger::start().await;
    let zero = ledger.try_append(&GATEWAY.to_string(), vec![charge(1, |_| ()), charge(0, |_| ())]).await;
    assert_eq!(zero.unwrap_err().code(), tonic::Code::InvalidArgument);
    for sender in ["", "gateway", &TenantId::from_u128(1).to_string()] {
        let refused = ledger.try_append(sender, vec![charge(1, |_| ())]).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{sender}");
    }
    assert_eq!(ledger.count("ledger_sequences").await, 0);
}

#[tokio::test]
async fn nobody_is_heard_without_the_secret() {
    let ledger = Ledger::start().await;
    let wrong = SECRET.replace('0', "f");
    let request = || weir_schemas::rpc::ledger::AppendRequest::default();
    let refused = ledger.client_with(&wrong).append(request()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    let address = format!("http://{}", ledger.running.rpc_addr);
    let mut anonymous =
        weir_schemas::rpc::ledger::ledger_client::LedgerClient::connect(address).await.unwrap();
    assert_eq!(anonymous.append(request()).await.unwrap_err().code(), tonic::Code::Unauthenticated);
}
