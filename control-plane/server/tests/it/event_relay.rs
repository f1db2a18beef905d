//! The event log on its topic: all of it, in its order, whatever becomes of the broker, and never a secret.

use std::time::Duration;

use rdkafka::Message;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Headers;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::{Value, json};
use weir_schemas::records::ControlEventRecord;

use crate::private_kafka::PrivateKafka;
use crate::support::{ControlPlane, Installation, eventually, private_keys};

async fn broker() -> (PrivateKafka, Installation) {
    let broker = tokio::task::spawn_blocking(PrivateKafka::start).await.unwrap();
    let mut installation = Installation::new();
    installation.kafka = broker.raw();
    (broker, installation)
}

/// The topic from its start until the event at `position`, as text.
async fn read_until(broker: &PrivateKafka, position: u64) -> Vec<String> {
    let mut config = broker.kafka().client_config();
    config.set("group.id", "test").set("topic.metadata.refresh.interval.ms", "1000");
    let consumer: BaseConsumer = config.create().unwrap();
    tokio::task::spawn_blocking(move || {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset("weir.control.v1", 0, Offset::Beginning).unwrap();
        consumer.assign(&list).unwrap();
        let mut read = Vec::new();
        while let Some(message) = consumer.poll(Duration::from_secs(60)) {
            // Before the topic is there the client says so; the wait's own limit decides.
            let Ok(message) = message else { continue };
            let header = message.headers().unwrap().get(0);
            let text = String::from_utf8(message.payload().unwrap().to_vec()).unwrap();
            let event: ControlEventRecord = serde_json::from_str(&text).unwrap();
            assert_eq!(header.key, "weir-position");
            assert_eq!(header.value, Some(event.data.position.to_string().as_bytes()));
            assert_eq!(message.key(), Some(event.data.stream.as_bytes()));
            read.push(text);
            if event.data.position == position {
                return read;
            }
        }
        panic!("the event at {position} never came");
    })
    .await
    .unwrap()
}

/// The log as the API shows it, in the words of the topic.
async fn log(plane: &ControlPlane) -> Vec<Value> {
    let page = plane.get("/api/v1/events?limit=200").await.expect(200);
    assert_eq!(page["has_more"], false);
    let renamed = |event: &Value| {
        json!({
            "position": event["position"], "stream": event["stream"], "version": event["version"],
            "event": event["type"], "fields": event["data"], "actor": event["actor"],
            "recorded_at": event["recorded_at"],
        })
    };
    page["data"].as_array().unwrap().iter().map(renamed).collect()
}

fn data(read: &[String]) -> Vec<Value> {
    read.iter().map(|text| serde_json::from_str::<Value>(text).unwrap()["data"].clone()).collect()
}

#[tokio::test]
async fn the_log_is_relayed_once_and_in_order_by_one_of_two_control_planes_without_a_secret() {
    let (broker, installation) = broker().await;
    let (one, two) = (installation.start().await, installation.start().await);
    let tenant = one.tenant("acme").await;
    let (_, token) = one.key(&tenant, &["inference"]).await;
    for number in 0..30 {
        let plane = if number % 2 == 0 { &one } else { &two };
        let body = json!({"name": format!("tenant {number}")});
        plane.send("POST", "/api/v1/tenants", &one.admin, &[], Some(&body)).await.expect(201);
    }
    let log = log(&one).await;
    let read = read_until(&broker, log.len() as u64).await;
    assert_eq!(data(&read), log);
    let all = read.concat();
    for (_, seed) in private_keys(&installation.data_dir()) {
        assert!(!all.contains(&hex::encode(seed)));
    }
    for secret in [&token, &one.admin] {
        assert!(!secret.is_empty() && !all.contains(secret.as_str()));
        assert!(!all.contains(secret.rsplit('.').next().unwrap()));
    }
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_broker_was_killed_none_is_missing_and_after_it_lost_its_disk_the_topic_is_filled_anew() {
    let (broker, installation) = broker().await;
    let plane = installation.start().await;
    plane.tenant("first").await;
    let before = log(&plane).await.len() as u64;
    read_until(&broker, before).await;
    broker.kill();
    for number in 0..10 {
        plane.tenant(&format!("tenant {number}")).await;
    }
    tokio::task::block_in_place(|| broker.resume());
    plane.tenant("last").await;
    let kept = log(&plane).await;
    let read = data(&read_until(&broker, kept.len() as u64).await);
    // At least once: a reader passes over what it has seen.
    let mut seen = Vec::<Value>::new();
    for event in read {
        if event["position"].as_u64().unwrap() > seen.len() as u64 {
            seen.push(event);
        }
    }
    assert_eq!(seen, kept);

    broker.kill();
    broker.wipe();
    tokio::task::block_in_place(|| broker.resume());
    assert_eq!(data(&read_until(&broker, kept.len() as u64).await), kept);
    eventually("the metric", async || {
        let line = format!("weir_control_plane_event_relay_position {}", kept.len());
        plane.metrics().contains(&line).then_some(())
    })
    .await;
    plane.stop().await;
}
