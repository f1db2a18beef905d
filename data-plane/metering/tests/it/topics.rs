//! Topics on a real cluster, and a cluster that asks who comes: what is made, what is refused, and in which words.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use weir_schemas::kafka::{Kafka, RawKafka, Topic, TopicError, ensure_topics};

use crate::private_kafka::GuardedKafka;

const PASSWORD: &str = "hidden-phrase";

fn checked(raw: RawKafka) -> Kafka {
    Option::<Kafka>::try_from(raw).unwrap().unwrap()
}

/// The error with its causes, as it is logged.
async fn refusal(raw: RawKafka, topics: &[Topic]) -> (TopicError, String) {
    let error = ensure_topics(&checked(raw), topics).await.unwrap_err();
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    let text = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    assert!(!text.contains(PASSWORD), "{text}");
    (error, text)
}

/// As an operator would, with settings of their own.
async fn make(raw: RawKafka, topic: Topic, partitions: i32, settings: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> = checked(raw).client_config().create().unwrap();
    let mut new = NewTopic::new(topic.name(), partitions, TopicReplication::Fixed(1));
    for (key, value) in settings {
        new = new.set(key, value);
    }
    admin.create_topics(&[new], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
}

#[tokio::test]
async fn topics_are_made_checked_or_refused_with_what_to_do() {
    let guarded = tokio::task::spawn_blocking(|| GuardedKafka::start(PASSWORD)).await.unwrap();
    let broker = &guarded.broker;
    let open = broker.raw();

    let forbidden = RawKafka { create_topics: false, ..open.clone() };
    let (error, text) = refusal(forbidden.clone(), &Topic::RECORDS).await;
    assert!(matches!(error, TopicError::Missing { .. }), "{text}");
    assert!(text.contains("kafka-topics.sh --bootstrap-server 127.0.0.1:"), "{text}");
    assert!(text.contains("--create --topic weir.usage.v1 --partitions 6"), "{text}");

    // TLS and SASL work; this user may not create topics.
    let (error, text) = refusal(guarded.by_plain(), &Topic::RECORDS).await;
    assert!(matches!(error, TopicError::Refused { .. }), "{text}");
    assert!(text.contains("allow this client CREATE") && text.contains("--topic weir.usage.v1"), "{text}");

    log_ins_are_refused(&guarded).await;

    // Several processes begin at once; whoever comes first makes them, with the partitions that were asked for.
    let three = checked(RawKafka { partitions: 3, ..open.clone() });
    let (one, two) =
        tokio::join!(ensure_topics(&three, &Topic::RECORDS), ensure_topics(&three, &Topic::RECORDS));
    one.and(two).unwrap();
    ensure_topics(&checked(forbidden), &Topic::RECORDS).await.unwrap();
    let kafka = broker.kafka();
    let cluster = tokio::task::spawn_blocking(move || kafka.describe(Duration::from_secs(10)));
    let topics = cluster.await.unwrap().unwrap().topics;
    assert!(
        Topic::RECORDS.iter().all(|topic| topics.iter().any(|found| found == topic.name())),
        "{topics:?}"
    );

    make(open.clone(), Topic::Control, 3, &[]).await;
    let (error, text) = refusal(open.clone(), &[Topic::Control]).await;
    assert!(matches!(error, TopicError::Unfit { .. }) && text.contains("3 partitions"), "{text}");
    make(open.clone(), Topic::DeadLetters, 1, &[("cleanup.policy", "compact")]).await;
    let (error, text) = refusal(open, &[Topic::DeadLetters]).await;
    assert!(matches!(error, TopicError::Unfit { .. }), "{text}");
    assert!(text.contains("--add-config cleanup.policy=delete"), "{text}");
}

/// Whoever may not come in is told why and soon, and can tell it from a broker that is away.
async fn log_ins_are_refused(guarded: &GuardedKafka) {
    let wrong_file = guarded.broker.home().join("wrong");
    std::fs::write(&wrong_file, "another phrase").unwrap();
    let wrong = |raw: RawKafka| RawKafka { sasl_password_file: wrong_file.clone(), ..raw };
    let nobody = RawKafka { sasl_username: "nobody".into(), ..guarded.by_scram() };
    let anonymous = RawKafka { certificate_file: "".into(), key_file: "".into(), ..guarded.by_certificate() };
    for (raw, words) in [
        (wrong(guarded.by_plain()), "uthentication failed"),
        (wrong(guarded.by_scram()), "uthentication failed"),
        (nobody, "uthentication failed"),
        // An authority that we do not know, a certificate that the broker does not know, and none.
        (RawKafka { ca_file: "".into(), ..guarded.by_scram() }, "certificate"),
        (guarded.by_unknown_certificate(), "certificate"),
        (anonymous, "certificate"),
    ] {
        let refused = refusal(raw, &Topic::RECORDS);
        // The time of one request, and much for a busy machine.
        let (error, text) = tokio::time::timeout(Duration::from_secs(60), refused).await.unwrap();
        assert!(matches!(error, TopicError::Unreachable { .. }), "{text}");
        assert!(text.contains(words), "{text}");
    }
}

#[tokio::test]
async fn a_cluster_that_is_away_is_said_to_be() {
    // Nothing listens on the discard port.
    let (error, text) =
        refusal(RawKafka { brokers: "127.0.0.1:9".into(), ..RawKafka::default() }, &[Topic::Usage]).await;
    assert!(matches!(error, TopicError::Unreachable { .. }), "{text}");
    assert!(text.contains("127.0.0.1:9") && text.contains("refused"), "{text}");
}
