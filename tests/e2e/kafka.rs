//! Records through a real broker: a consumer that knows nothing of ours but the guide and the schemas comes to the same
//! sums as the ledger, and the broker outlives a crash of everything else.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use weir_tests::api::Api;
use weir_tests::installation::{Installation, repository};
use weir_tests::ledger::{Charge, Ledger};

/// What `tests/conformance/kafka_consumer.py` says.
fn consume(installation: &Installation) -> Value {
    let python = repository().join(".cache/venv-tests/bin/python");
    assert!(python.is_file(), "the test clients are missing: run `make test`");
    let output = Command::new(python)
        .arg(repository().join("tests/conformance/kafka_consumer.py"))
        .args(["--brokers", &installation.env["WEIR_KAFKA_BROKERS"], "--schemas"])
        .arg(repository().join("schemas/json"))
        .output()
        .unwrap();
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{failed}");
    serde_json::from_str(&said).unwrap()
}

fn sums(charges: &[Charge]) -> Value {
    let sum = |of: fn(&Charge) -> i64| charges.iter().map(of).sum::<i64>();
    json!({
        "requests": charges.len(),
        "prompt_tokens": sum(|charge| charge.prompt_tokens),
        "cached_prompt_tokens": sum(|charge| charge.cached_prompt_tokens),
        "generated_tokens": sum(|charge| charge.generated_tokens),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outside_consumer_and_the_ledger_come_to_the_same_sums() {
    let mut installation = Installation::start_with_kafka();
    let operator = Api::operator(&installation);
    let mut tenants = Vec::new();
    for name in ["kafka-one", "kafka-two"] {
        tenants.push(operator.create_tenant(name, json!({}), chrono::Utc::now()).await);
    }
    for (number, tenant) in tenants.iter().enumerate() {
        for length in 1..=3 + number {
            tenant.api.chat("Count to ten.", json!({"max_tokens": 4 * length})).await;
        }
    }
    let broker = installation.kafka_pid().expect("a broker runs");

    // Killed with records under way: the broker is taken over, and what was not delivered is.
    installation.kill();
    assert_eq!(installation.kafka_pid(), Some(broker), "the broker lives on");
    installation.resume();
    assert!(installation.screen().contains("Kafka was running already"), "{}", installation.screen());
    assert_eq!(installation.kafka_pid(), Some(broker));
    let ledger = Ledger::of(&installation).await;
    let mut expected = Vec::new();
    for (number, tenant) in tenants.iter().enumerate() {
        let (charges, executions) = ledger.settled(&tenant.id, 3 + number, 3 + number).await;
        assert!(charges.iter().all(|charge| charge.generated_tokens > 0));
        let generated: i64 = executions.iter().map(|execution| execution.generated_tokens).sum();
        expected.push((
            tenant.id.clone(),
            sums(&charges),
            json!({"attempts": 3 + number, "generated_tokens": generated}),
        ));
    }

    let told = consume(&installation);
    for (tenant, charged, executed) in &expected {
        assert_eq!(&told["tenants"][tenant], charged, "{told}");
        assert_eq!(&told["executions"][tenant], executed, "{told}");
    }
    assert_eq!(told["control"]["gapless"], true, "{told}");
    assert!(told["control"]["last_position"].as_u64().unwrap() > 0, "{told}");

    assert!(installation.stop(), "Ctrl-C ends it cleanly");
    assert_eq!(installation.kafka_pid(), None, "the broker is stopped too");
    assert!(Path::new(&installation.state_dir().join("kafka/data/meta.properties")).exists());
}
