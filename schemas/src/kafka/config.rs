//! How a cluster is reached: the `kafka` table of each component's section.

use std::fmt;
use std::path::{Path, PathBuf};

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use serde::{Deserialize, Serialize};

use super::ClientLog;

/// Partitions of a record topic: consumers of one group that can share the work of a busy installation.
const DEFAULT_PARTITIONS: u32 = 6;
/// More than any installation's consumers; a broker refuses far larger numbers anyway.
const PARTITIONS_LIMIT: u32 = 1000;
/// Addresses to begin with; the cluster tells the rest.
const BROKERS_LIMIT: usize = 64;
/// A password is one line.
const PASSWORD_CHARS_MAX: usize = 1024;
/// How late a broker that is back is noticed.
const RECONNECT_BACKOFF_MAX_MS: &str = "1000";

/// How connections are protected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Security {
    /// Not at all: a private network, or this machine.
    #[default]
    Plaintext,
    /// TLS; the broker's certificate and name are verified.
    Tls,
}

/// How a client says who it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SaslMechanism {
    /// It does not, or by its TLS certificate.
    #[default]
    #[serde(rename = "")]
    None,
    /// User name and password, over TLS only.
    #[serde(rename = "PLAIN")]
    Plain,
    /// Salted challenge-response with SHA-256.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// Salted challenge-response with SHA-512.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

/// The table as it stands in the file; the default names no broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RawKafka {
    /// `host:port`, several separated by commas; empty: no Kafka.
    pub brokers: String,
    /// `plaintext` or `tls`.
    pub security: Security,
    /// PEM file with the authorities that the brokers' certificates are checked against; empty: the system's.
    pub ca_file: PathBuf,
    /// PEM file with the client's own certificate, where the brokers ask for one.
    pub certificate_file: PathBuf,
    /// PEM file with that certificate's private key.
    pub key_file: PathBuf,
    /// `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, or empty.
    pub sasl_mechanism: SaslMechanism,
    /// User name for SASL.
    pub sasl_username: String,
    /// File with the password for SASL.
    pub sasl_password_file: PathBuf,
    /// Partitions of record topics that are created here.
    pub partitions: u32,
    /// Create topics that are missing; otherwise an operator does.
    pub create_topics: bool,
}

impl Default for RawKafka {
    fn default() -> Self {
        Self {
            brokers: String::new(),
            security: Security::Plaintext,
            ca_file: PathBuf::new(),
            certificate_file: PathBuf::new(),
            key_file: PathBuf::new(),
            sasl_mechanism: SaslMechanism::None,
            sasl_username: String::new(),
            sasl_password_file: PathBuf::new(),
            partitions: DEFAULT_PARTITIONS,
            create_topics: true,
        }
    }
}

/// What is wrong with the table.
#[derive(Debug, thiserror::Error)]
pub enum KafkaConfigError {
    /// Not a list of addresses.
    #[error("kafka.brokers: '{part}' is not of the form host:port")]
    Brokers {
        /// The part that is no address, cut short.
        part: String,
    },
    /// Too many of them.
    #[error("kafka.brokers names more than {BROKERS_LIMIT}; a few of them are enough to find the rest")]
    TooManyBrokers,
    /// Out of range.
    #[error("kafka.partitions is {actual}, but must be 1 to {PARTITIONS_LIMIT}")]
    Partitions {
        /// As configured.
        actual: u32,
    },
    /// Settings that contradict each other.
    #[error("kafka.{key}: {reason}")]
    Contradiction {
        /// Which key.
        key: &'static str,
        /// What is wrong.
        reason: &'static str,
    },
    /// A file that cannot be read.
    #[error("kafka.{key}: cannot read {path}", path = path.display())]
    File {
        /// Which key.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The password file does not hold one.
    #[error("kafka.sasl_password_file must hold one line of 1 to {PASSWORD_CHARS_MAX} characters")]
    Password,
    /// The client library does not take the certificates or the key.
    #[error("kafka.ca_file, certificate_file or key_file cannot be used: {0}")]
    Certificates(String),
}

/// A cluster, as checked settings. Nothing is connected to yet, and nothing shows the password.
#[derive(Debug, Clone)]
pub struct Kafka {
    brokers: String,
    security: Security,
    ca_file: Option<PathBuf>,
    client_certificate: Option<ClientCertificate>,
    sasl: Option<Sasl>,
    partitions: u32,
    create_topics: bool,
}

#[derive(Debug, Clone)]
struct ClientCertificate {
    certificate_file: PathBuf,
    key_file: PathBuf,
}

#[derive(Clone)]
struct Sasl {
    mechanism: &'static str,
    username: String,
    password: String,
}

impl fmt::Debug for Sasl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mechanism, username, password: _ } = self;
        f.debug_struct("Sasl")
            .field("mechanism", mechanism)
            .field("username", username)
            .finish_non_exhaustive()
    }
}

impl TryFrom<RawKafka> for Option<Kafka> {
    type Error = KafkaConfigError;

    /// `None` where no broker is named.
    fn try_from(raw: RawKafka) -> Result<Self, KafkaConfigError> {
        let RawKafka {
            brokers,
            security,
            ca_file,
            certificate_file,
            key_file,
            sasl_mechanism,
            sasl_username,
            sasl_password_file,
            partitions,
            create_topics,
        } = raw;
        if brokers.trim().is_empty() {
            return Ok(None);
        }
        if !(1..=PARTITIONS_LIMIT).contains(&partitions) {
            return Err(KafkaConfigError::Partitions { actual: partitions });
        }
        let ca_file = given("ca_file", ca_file)?;
        let client_certificate = client_certificate(certificate_file, key_file)?;
        if security == Security::Plaintext {
            if ca_file.is_some() {
                return Err(contradiction("ca_file", "means nothing without security = \"tls\""));
            }
            if client_certificate.is_some() {
                return Err(contradiction("certificate_file", "means nothing without security = \"tls\""));
            }
        }
        let kafka = Kafka {
            brokers: check_brokers(&brokers)?,
            security,
            ca_file,
            client_certificate,
            sasl: sasl(security, sasl_mechanism, sasl_username, sasl_password_file)?,
            partitions,
            create_topics,
        };
        if kafka.security == Security::Tls {
            kafka.try_certificates()?;
        }
        Ok(Some(kafka))
    }
}

impl Kafka {
    /// What every client of this cluster is set to; add what a producer or a consumer needs, and use a
    /// [`ClientLog`](super::ClientLog) as its context.
    pub fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set_log_level(RDKafkaLogLevel::Warning);
        config
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", "weir")
            .set("reconnect.backoff.max.ms", RECONNECT_BACKOFF_MAX_MS)
            .set("socket.keepalive.enable", "true")
            .set("security.protocol", self.security_protocol());
        if let Some(ca_file) = &self.ca_file {
            config.set("ssl.ca.location", text(ca_file));
        }
        if let Some(ClientCertificate { certificate_file, key_file }) = &self.client_certificate {
            config.set("ssl.certificate.location", text(certificate_file));
            config.set("ssl.key.location", text(key_file));
        }
        if let Some(Sasl { mechanism, username, password }) = &self.sasl {
            config.set("sasl.mechanism", *mechanism);
            config.set("sasl.username", username);
            config.set("sasl.password", password);
        }
        config
    }

    /// The addresses to begin with, separated by commas.
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// Partitions of record topics that are created here.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Whether missing topics are created here.
    pub fn creates_topics(&self) -> bool {
        self.create_topics
    }

    /// The client library reads the files as it makes a client, and only then; so it makes one, which connects to nobody.
    fn try_certificates(&self) -> Result<(), KafkaConfigError> {
        let log = ClientLog::default();
        let client: Result<BaseConsumer<ClientLog>, _> =
            self.client_config().set("bootstrap.servers", "").create_with_context(log);
        match client {
            Ok(_) => Ok(()),
            Err(KafkaError::ClientCreation(reason)) => Err(KafkaConfigError::Certificates(reason)),
            Err(error) => Err(KafkaConfigError::Certificates(error.to_string())),
        }
    }

    fn security_protocol(&self) -> &'static str {
        match (self.security, &self.sasl) {
            (Security::Plaintext, None) => "plaintext",
            (Security::Plaintext, Some(_)) => "sasl_plaintext",
            (Security::Tls, None) => "ssl",
            (Security::Tls, Some(_)) => "sasl_ssl",
        }
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn contradiction(key: &'static str, reason: &'static str) -> KafkaConfigError {
    KafkaConfigError::Contradiction { key, reason }
}

/// The list without its white space, each part an address.
fn check_brokers(brokers: &str) -> Result<String, KafkaConfigError> {
    let parts: Vec<&str> = brokers.split(',').map(str::trim).collect();
    if parts.len() > BROKERS_LIMIT {
        return Err(KafkaConfigError::TooManyBrokers);
    }
    for part in &parts {
        let is_address = part.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty()
                && !host.contains(|c: char| c.is_whitespace() || c == '/')
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if !is_address {
            return Err(KafkaConfigError::Brokers { part: part.chars().take(128).collect() });
        }
    }
    Ok(parts.join(","))
}

/// A file that is named must be readable now, rather than be missed at the first connection.
fn given(key: &'static str, path: PathBuf) -> Result<Option<PathBuf>, KafkaConfigError> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    match std::fs::File::open(&path) {
        Ok(_) => Ok(Some(path)),
        Err(source) => Err(KafkaConfigError::File { key, path, source }),
    }
}

fn client_certificate(
    certificate_file: PathBuf,
    key_file: PathBuf,
) -> Result<Option<ClientCertificate>, KafkaConfigError> {
    match (given("certificate_file", certificate_file)?, given("key_file", key_file)?) {
        (Some(certificate_file), Some(key_file)) => {
            Ok(Some(ClientCertificate { certificate_file, key_file }))
        }
        (None, None) => Ok(None),
        (Some(_), None) => Err(contradiction("key_file", "a certificate needs its key")),
        (None, Some(_)) => Err(contradiction("certificate_file", "a key needs its certificate")),
    }
}

fn sasl(
    security: Security,
    mechanism: SaslMechanism,
    username: String,
    password_file: PathBuf,
) -> Result<Option<Sasl>, KafkaConfigError> {
    let mechanism = match mechanism {
        SaslMechanism::None if username.is_empty() && password_file.as_os_str().is_empty() => {
            return Ok(None);
        }
        SaslMechanism::None => {
            return Err(contradiction("sasl_mechanism", "a user name or password needs a mechanism"));
        }
        SaslMechanism::Plain if security == Security::Plaintext => {
            return Err(contradiction(
                "sasl_mechanism",
                "PLAIN without TLS would show the password to anyone",
            ));
        }
        SaslMechanism::Plain => "PLAIN",
        SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
        SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
    };
    if username.is_empty() {
        return Err(contradiction("sasl_username", "is empty"));
    }
    if password_file.as_os_str().is_empty() {
        return Err(contradiction("sasl_password_file", "is empty; a mechanism needs a password"));
    }
    let password = match std::fs::read_to_string(&password_file) {
        Ok(text) => text.trim_end_matches(['\r', '\n']).to_owned(),
        Err(source) => {
            return Err(KafkaConfigError::File { key: "sasl_password_file", path: password_file, source });
        }
    };
    let chars = password.chars().count();
    if chars == 0 || chars > PASSWORD_CHARS_MAX || password.contains(['\n', '\0']) {
        return Err(KafkaConfigError::Password);
    }
    Ok(Some(Sasl { mechanism, username, password }))
}

#[cfg(test)]
mod tests;
