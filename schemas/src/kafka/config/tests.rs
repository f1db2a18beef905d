//! What the settings refuse, and that no secret is ever shown.

use super::*;

/// A certificate of no use to anyone, valid for a hundred years.
const AUTHORITY: &str = include_str!("authority.pem");

fn checked(change: impl FnOnce(&mut RawKafka)) -> Result<Option<Kafka>, KafkaConfigError> {
    let mut raw = RawKafka { brokers: "one:9092".into(), ..RawKafka::default() };
    change(&mut raw);
    raw.try_into()
}

#[test]
fn no_broker_is_no_kafka() {
    assert!(Option::<Kafka>::try_from(RawKafka::default()).unwrap().is_none());
}

#[test]
fn a_list_of_brokers_is_checked_part_by_part() {
    let kafka = checked(|raw| raw.brokers = " one:9092, [::1]:9093 ".into()).unwrap().unwrap();
    assert_eq!(kafka.brokers(), "one:9092,[::1]:9093");
    for bad in ["one", "one:", ":9092", "one:0", "one:70000", "one:9092,", "kafka://one:9092", "a b:1"] {
        let error = checked(|raw| raw.brokers = bad.into()).unwrap_err();
        assert!(matches!(error, KafkaConfigError::Brokers { .. }), "{bad}: {error}");
    }
    let many = ["a:1"; BROKERS_LIMIT + 1].join(",");
    assert!(matches!(checked(|raw| raw.brokers = many), Err(KafkaConfigError::TooManyBrokers)));
}

#[test]
fn each_contradiction_names_its_key() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = || file.path().to_owned();
    let check = |key: &str, change: &dyn Fn(&mut RawKafka)| {
        let error = checked(change).unwrap_err().to_string();
        assert!(error.contains(&format!("kafka.{key}")), "{error}");
    };
    check("partitions", &|raw| raw.partitions = 0);
    check("ca_file", &|raw| raw.ca_file = "/nowhere".into());
    check("ca_file", &|raw| raw.ca_file = path());
    check("key_file", &|raw| (raw.security, raw.certificate_file) = (Security::Tls, path()));
    check("certificate_file", &|raw| (raw.security, raw.key_file) = (Security::Tls, path()));
    check("sasl_mechanism", &|raw| raw.sasl_username = "weir".into());
    check("sasl_mechanism", &|raw| raw.sasl_mechanism = SaslMechanism::Plain);
    check("sasl_username", &|raw| raw.sasl_mechanism = SaslMechanism::ScramSha256);
    check("sasl_password_file", &|raw| {
        (raw.sasl_mechanism, raw.sasl_username) = (SaslMechanism::ScramSha256, "weir".into());
    });
}

#[test]
fn tls_and_sasl_reach_the_client_and_the_password_reaches_nobody_else() {
    let (ca, password) = (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    std::fs::write(password.path(), "hidden phrase\n").unwrap();
    std::fs::write(ca.path(), AUTHORITY).unwrap();
    let kafka = checked(|raw| {
        raw.security = Security::Tls;
        raw.ca_file = ca.path().to_owned();
        raw.sasl_mechanism = SaslMechanism::ScramSha512;
        raw.sasl_username = "weir".into();
        raw.sasl_password_file = password.path().to_owned();
    });
    let kafka = kafka.unwrap().unwrap();
    let config = kafka.client_config();
    for (key, value) in [
        ("security.protocol", "sasl_ssl"),
        ("sasl.mechanism", "SCRAM-SHA-512"),
        ("sasl.username", "weir"),
        ("sasl.password", "hidden phrase"),
        ("ssl.ca.location", ca.path().to_str().unwrap()),
    ] {
        assert_eq!(config.get(key), Some(value), "{key}");
    }
    assert!(!format!("{kafka:?} {config:?}").contains("hidden"));
    std::fs::write(password.path(), "\n").unwrap();
    let empty = checked(|raw| {
        raw.sasl_mechanism = SaslMechanism::ScramSha256;
        raw.sasl_username = "weir".into();
        raw.sasl_password_file = password.path().to_owned();
    });
    assert!(matches!(empty, Err(KafkaConfigError::Password)));
}

#[test]
fn files_that_hold_no_certificate_or_no_key_are_refused_now() {
    let (certificate, junk) =
        (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
    std::fs::write(certificate.path(), AUTHORITY).unwrap();
    std::fs::write(junk.path(), "junk").unwrap();
    let (certificate, junk) = (certificate.path().to_owned(), junk.path().to_owned());
    let refused = |change: &dyn Fn(&mut RawKafka)| {
        let error = checked(|raw| {
            raw.security = Security::Tls;
            change(raw);
        });
        assert!(matches!(&error, Err(KafkaConfigError::Certificates(_))), "{error:?}");
        error.unwrap_err().to_string()
    };
    let ca = refused(&|raw| raw.ca_file.clone_from(&junk));
    assert!(ca.contains("ssl.ca.location"), "{ca}");
    let own = refused(&|raw| {
        (raw.certificate_file, raw.key_file) = (junk.clone(), junk.clone());
    });
    assert!(own.contains("ssl.certificate.location"), "{own}");
    let key = refused(&|raw| {
        (raw.certificate_file, raw.key_file) = (certificate.clone(), junk.clone());
    });
    assert!(key.contains("ssl.key.location"), "{key}");
}

/// The client library must have been built with what the settings offer.
#[test]
fn every_way_of_authentication_makes_a_client() {
    use rdkafka::consumer::BaseConsumer;

    let password = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(password.path(), "hidden phrase\n").unwrap();
    for mechanism in [SaslMechanism::Plain, SaslMechanism::ScramSha256, SaslMechanism::ScramSha512] {
        let kafka = checked(|raw| {
            raw.security = Security::Tls;
            raw.sasl_mechanism = mechanism;
            raw.sasl_username = "weir".into();
            raw.sasl_password_file = password.path().to_owned();
        });
        let client = kafka.unwrap().unwrap().client_config().create::<BaseConsumer>();
        assert!(client.is_ok(), "{mechanism:?}: {:?}", client.err());
    }
}

#[test]
fn the_file_s_words_are_the_documented_ones() {
    let parsed: RawKafka =
        serde_json::from_str(r#"{"brokers": "a:1", "security": "tls", "sasl_mechanism": "SCRAM-SHA-256"}"#)
            .unwrap();
    assert_eq!((parsed.security, parsed.sasl_mechanism), (Security::Tls, SaslMechanism::ScramSha256));
    assert!(serde_json::from_str::<RawKafka>(r#"{"security": "ssl"}"#).is_err());
}
