//! The gateway's section of the configuration file.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_schemas::kafka::{Kafka, KafkaConfigError, RawKafka};
use weir_schemas::rpc::auth::{InternalSecret, SecretError};
use weir_schemas::rpc::setting::{self, SettingError};

/// A context of 128k tokens is about 600 kB of English; four MiB leaves room for JSON escapes and other scripts.
const DEFAULT_MAX_BODY_BYTES: u64 = 4 << 20;
/// Each connection costs a task, two buffers of some 10 kB and a file descriptor.
const DEFAULT_MAX_CONNECTIONS: u64 = 4096;
/// A client that takes nothing for this long is gone or stuck; a phone in a tunnel comes back sooner.
const DEFAULT_SLOW_READER_TIMEOUT_MS: u64 = 30_000;
/// Long enough for 8,000 tokens from a slow CPU.
const DEFAULT_REQUEST_TIMEOUT_MS: u64 = 1_800_000;
/// As the record log's own default.
const DEFAULT_RECORD_LOG_MAX_BYTES: u64 = 1 << 30;

/// A client that lost its line retries within seconds; longer than that costs capacity that perhaps nobody wants.
const DEFAULT_IDEMPOTENCY_GRACE_MS: u64 = 30_000;
/// A day of some 400,000 answers of 2 kB.
const DEFAULT_IDEMPOTENCY_MAX_BYTES: u64 = 1 << 30;

/// The section as it stands in the file: `[gateway]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RawConfig {
    /// Address of the HTTP listener.
    pub listen: SocketAddr,
    /// Take any free port when that one is taken.
    pub port_fallback: bool,
    /// `http://host:port` under which it is known to the control plane; empty: the listener's own address.
    pub advertise: String,
    /// Its id, its record log, its last good config, the model texts it fetched.
    pub data_dir: PathBuf,
    /// `http://host:port` of the control plane's RPC.
    pub control_plane: String,
    /// `http://host:port` of the ledger's RPC.
    pub ledger: String,
    /// Where records go; without a broker they go straight to the ledger.
    pub kafka: RawKafka,
    /// File with the installation's secret.
    pub internal_secret_file: PathBuf,
    /// Largest request body.
    pub max_body_bytes: u64,
    /// Connections at once; the next waits to be accepted.
    pub max_connections: u64,
    /// A client that takes no byte for this long is cut off, and charged for what was generated.
    pub slow_reader_timeout_ms: u64,
    /// Longest time from a request's arrival to its last token.
    pub request_timeout_ms: u64,
    /// Bound of the record log; when it is full, new requests are refused.
    pub record_log_max_bytes: u64,
    /// How long a request with an Idempotency-Key goes on when none of its clients is there any more.
    pub idempotency_grace_ms: u64,
    /// Bound of the answers kept for repeats; the oldest go first.
    pub idempotency_max_bytes: u64,
    /// How long requests are still taken after a stop was asked for, while `/readyz` says no: as long as a load
    /// balancer takes to notice.
    pub stop_notice_ms: u64,
    /// How long running requests may go on after that.
    pub drain_timeout_ms: u64,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7201)),
            port_fallback: false,
            advertise: String::new(),
            data_dir: PathBuf::from("/var/lib/weir/gateway"),
            control_plane: "http://127.0.0.1:7102".to_owned(),
            ledger: "http://127.0.0.1:7103".to_owned(),
            kafka: RawKafka::default(),
            internal_secret_file: PathBuf::from("/etc/weir/internal_secret"),
            max_body_bytes: DEFAULT_MAX_BODY_BYTES,
            max_connections: DEFAULT_MAX_CONNECTIONS,
            slow_reader_timeout_ms: DEFAULT_SLOW_READER_TIMEOUT_MS,
            request_timeout_ms: DEFAULT_REQUEST_TIMEOUT_MS,
            record_log_max_bytes: DEFAULT_RECORD_LOG_MAX_BYTES,
            idempotency_grace_ms: DEFAULT_IDEMPOTENCY_GRACE_MS,
            idempotency_max_bytes: DEFAULT_IDEMPOTENCY_MAX_BYTES,
            stop_notice_ms: 0,
            drain_timeout_ms: 30_000,
        }
    }
}

/// Why the section cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Internal RPC without a secret would be open to anyone.
    #[error("gateway.internal_secret_file: the gateway does not start without the internal secret")]
    Secret(#[source] SecretError),
    /// The `kafka` table.
    #[error("the gateway's Kafka settings cannot be used")]
    Kafka(#[source] KafkaConfigError),
    /// A number outside its range, or an address that is none.
    #[error("gateway.{0}")]
    Setting(SettingError),
}

// Its text is part of this one's: as a source it would be said twice.
impl From<SettingError> for ConfigError {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}

/// The checked section.
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) port_fallback: bool,
    pub(crate) advertise: Option<String>,
    pub(crate) data_dir: PathBuf,
    pub(crate) control_plane: String,
    pub(crate) ledger: String,
    pub(crate) kafka: Option<Kafka>,
    pub(crate) secret: InternalSecret,
    pub(crate) max_body_bytes: usize,
    pub(crate) max_connections: usize,
    pub(crate) slow_reader_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) record_log_max_bytes: u64,
    pub(crate) idempotency_grace: Duration,
    pub(crate) idempotency_max_bytes: u64,
    pub(crate) stop_notice: Duration,
    pub(crate) drain_timeout: Duration,
}

impl TryFrom<RawConfig> for Config {
    type Error = ConfigError;

    fn try_from(raw: RawConfig) -> Result<Self, ConfigError> {
        let RawConfig {
            listen,
            port_fallback,
            advertise,
            data_dir,
            control_plane,
            ledger,
            kafka,
            internal_secret_file,
            max_body_bytes,
            max_connections,
            slow_reader_timeout_ms,
            request_timeout_ms,
            record_log_max_bytes,
            idempotency_grace_ms,
            idempotency_max_bytes,
            stop_notice_ms,
            drain_timeout_ms,
        } = raw;
        setting::http_address("control_plane", &control_plane)?;
        setting::http_address("ledger", &ledger)?;
        setting::in_range("max_body_bytes", max_body_bytes, 1024, 256 << 20)?;
        setting::in_range("max_connections", max_connections, 1, 1 << 20)?;
        setting::in_range("slow_reader_timeout_ms", slow_reader_timeout_ms, 10, 3_600_000)?;
        setting::in_range("request_timeout_ms", request_timeout_ms, 1_000, 86_400_000)?;
        setting::in_range("record_log_max_bytes", record_log_max_bytes, 32 << 20, 1 << 40)?;
        setting::in_range("idempotency_grace_ms", idempotency_grace_ms, 0, 3_600_000)?;
        setting::in_range("idempotency_max_bytes", idempotency_max_bytes, 32 << 20, 1 << 40)?;
        setting::in_range("stop_notice_ms", stop_notice_ms, 0, 600_000)?;
        setting::in_range("drain_timeout_ms", drain_timeout_ms, 0, 3_600_000)?;
        Ok(Self {
            listen,
            port_fallback,
            advertise: setting::advertised("advertise", advertise)?,
            data_dir,
            control_plane,
            ledger,
            kafka: kafka.try_into().map_err(ConfigError::Kafka)?,
            secret: InternalSecret::from_file(&internal_secret_file).map_err(ConfigError::Secret)?,
            max_body_bytes: usize::try_from(max_body_bytes).unwrap_or(usize::MAX),
            max_connections: usize::try_from(max_connections).unwrap_or(usize::MAX),
            slow_reader_timeout: Duration::from_millis(slow_reader_timeout_ms),
            request_timeout: Duration::from_millis(request_timeout_ms),
            record_log_max_bytes,
            idempotency_grace: Duration::from_millis(idempotency_grace_ms),
            idempotency_max_bytes,
            stop_notice: Duration::from_millis(stop_notice_ms),
            drain_timeout: Duration::from_millis(drain_timeout_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_secret(change: impl FnOnce(&mut RawConfig)) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef0123456789abcdef\n").unwrap();
        let mut raw = RawConfig { internal_secret_file: file.path().to_owned(), ..RawConfig::default() };
        change(&mut raw);
        Config::try_from(raw)
    }

    #[test]
    fn the_defaults_work_once_there_is_a_secret() {
        assert_eq!(with_secret(|_| ()).unwrap().max_body_bytes, 4 << 20);
        let without = RawConfig { internal_secret_file: "/nowhere".into(), ..RawConfig::default() };
        assert!(matches!(Config::try_from(without), Err(ConfigError::Secret(_))));
    }

    #[test]
    fn each_bad_value_names_its_key() {
        let check = |key: &str, change: fn(&mut RawConfig)| {
            let error = with_secret(change).unwrap_err().to_string();
            assert!(error.contains(&format!("gateway.{key}")), "{error}");
        };
        check("max_body_bytes", |raw| raw.max_body_bytes = 0);
        check("max_connections", |raw| raw.max_connections = 0);
        check("slow_reader_timeout_ms", |raw| raw.slow_reader_timeout_ms = 0);
        check("request_timeout_ms", |raw| raw.request_timeout_ms = u64::MAX);
        check("record_log_max_bytes", |raw| raw.record_log_max_bytes = 1);
        check("idempotency_grace_ms", |raw| raw.idempotency_grace_ms = u64::MAX);
        check("idempotency_max_bytes", |raw| raw.idempotency_max_bytes = 1);
        check("stop_notice_ms", |raw| raw.stop_notice_ms = u64::MAX);
        check("drain_timeout_ms", |raw| raw.drain_timeout_ms = u64::MAX);
        check("ledger", |raw| raw.ledger = "127.0.0.1:1".into());
        check("control_plane", |raw| raw.control_plane = "https://x:1".into());
        check("advertise", |raw| raw.advertise = "nonsense".into());
    }
}
