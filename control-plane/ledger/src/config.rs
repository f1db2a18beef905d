//! The ledger's section of the configuration file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;
use weir_schemas::kafka::{Kafka, KafkaConfigError, RawKafka};
use weir_schemas::rpc::auth::{InternalSecret, SecretError};
use weir_schemas::rpc::setting::{self, DatabaseUrlError, SettingError};

/// A sender's batches are serial, so more connections than senders that catch up at once are idle.
const DEFAULT_MAX_CONNECTIONS: u32 = 8;
/// How late a price that arrives after its requests is applied.
const DEFAULT_PRICING_INTERVAL_MS: u64 = 5_000;
const MAX_PRICING_INTERVAL_MS: u64 = 3_600_000;
/// How long a request that was executed waits for its charge record before it is charged from executions. Longer than
/// a request may run (half an hour by default, of which its first attempt may be a moment) and than a gateway takes to
/// come back with its disk; short enough that a lost gateway's requests are on the day's bill. One that comes later
/// is corrected, so too short costs rows, not money.
const DEFAULT_ORPHAN_GRACE_MS: u64 = 3_600_000;
const MAX_ORPHAN_GRACE_MS: u64 = 30 * 86_400_000;

/// The section as it stands in the file: `[ledger]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RawConfig {
    /// Address of the RPC listener.
    pub listen: SocketAddr,
    /// Take any free port when that one is taken.
    pub port_fallback: bool,
    /// `postgres://…`; empty: read `database_url_file`.
    pub database_url: String,
    /// File with the database URL, where that holds a password.
    pub database_url_file: PathBuf,
    /// File with the installation's secret.
    pub internal_secret_file: PathBuf,
    /// Connections to Postgres.
    pub max_connections: u32,
    /// Time between looks for prices of records that had none.
    pub pricing_interval_ms: u64,
    /// How long a request that was executed waits for its charge record before it is charged from its executions.
    pub orphan_grace_ms: u64,
    /// Where records are read from; without brokers, senders bring them by RPC. That door is open in any case.
    pub kafka: RawKafka,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7103)),
            port_fallback: false,
            database_url: String::new(),
            database_url_file: PathBuf::from("/etc/weir/database_url"),
            internal_secret_file: PathBuf::from("/etc/weir/internal_secret"),
            max_connections: DEFAULT_MAX_CONNECTIONS,
            pricing_interval_ms: DEFAULT_PRICING_INTERVAL_MS,
            orphan_grace_ms: DEFAULT_ORPHAN_GRACE_MS,
            kafka: RawKafka::default(),
        }
    }
}

/// The section, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the RPC listener.
    pub listen: SocketAddr,
    /// Take any free port when that one is taken.
    pub port_fallback: bool,
    /// How to reach Postgres.
    pub database: PgConnectOptions,
    /// The installation's secret.
    pub secret: InternalSecret,
    /// Connections to Postgres.
    pub max_connections: u32,
    /// Time between looks for prices of records that had none.
    pub pricing_interval: Duration,
    /// How long a request that was executed waits for its charge record before it is charged from its executions.
    pub orphan_grace: Duration,
    /// Where records are read from, if from Kafka.
    pub kafka: Option<Kafka>,
}

/// What is wrong with the section.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No secret, no internal RPC.
    #[error("ledger.internal_secret_file")]
    Secret(#[source] SecretError),
    /// No database.
    #[error("in [ledger]")]
    Database(#[source] DatabaseUrlError),
    /// The broker's settings.
    #[error("in [ledger.kafka]")]
    Kafka(#[source] KafkaConfigError),
    /// A number outside its range.
    #[error("ledger.{0}")]
    Setting(SettingError),
}

// Its text is part of this one's: as a source it would be said twice.
impl From<SettingError> for ConfigError {
    fn from(error: SettingError) -> Self {
        Self::Setting(error)
    }
}

impl TryFrom<RawConfig> for Config {
    type Error = ConfigError;

    fn try_from(raw: RawConfig) -> Result<Self, ConfigError> {
        let RawConfig {
            listen,
            port_fallback,
            database_url,
            database_url_file,
            internal_secret_file,
            max_connections,
            pricing_interval_ms,
            orphan_grace_ms,
            kafka,
        } = raw;
        setting::in_range("max_connections", max_connections.into(), 2, 100)?;
        setting::in_range("pricing_interval_ms", pricing_interval_ms, 100, MAX_PRICING_INTERVAL_MS)?;
        setting::in_range("orphan_grace_ms", orphan_grace_ms, 1_000, MAX_ORPHAN_GRACE_MS)?;
        let secret = InternalSecret::from_file(&internal_secret_file).map_err(ConfigError::Secret)?;
        Ok(Self {
            listen,
            port_fallback,
            database: database(&database_url, &database_url_file)?,
            secret,
            max_connections,
            pricing_interval: Duration::from_millis(pricing_interval_ms),
            orphan_grace: Duration::from_millis(orphan_grace_ms),
            kafka: kafka.try_into().map_err(ConfigError::Kafka)?,
        })
    }
}

impl RawConfig {
    /// How to reach Postgres: all that is needed to ask about what the ledger has.
    pub fn database(&self) -> Result<PgConnectOptions, ConfigError> {
        database(&self.database_url, &self.database_url_file)
    }
}

fn database(url: &str, file: &Path) -> Result<PgConnectOptions, ConfigError> {
    let url = setting::database_url(url, file).map_err(ConfigError::Database)?;
    url.parse().map_err(|_| ConfigError::Database(DatabaseUrlError::Form))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_secret(change: impl FnOnce(&mut RawConfig)) -> Result<Config, ConfigError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef0123456789abcdef\n").unwrap();
        let mut raw = RawConfig {
            internal_secret_file: file.path().to_owned(),
            database_url: "postgres:///weir".into(),
            ..RawConfig::default()
        };
        change(&mut raw);
        Config::try_from(raw)
    }

    #[test]
    fn nothing_starts_without_a_secret_and_a_database() {
        assert!(with_secret(|_| ()).is_ok());
        let no_secret = with_secret(|raw| raw.internal_secret_file = "/nowhere".into());
        assert!(matches!(no_secret, Err(ConfigError::Secret(_))));
        let no_database = with_secret(|raw| {
            raw.database_url.clear();
            raw.database_url_file = "/nowhere".into();
        });
        assert!(matches!(no_database, Err(ConfigError::Database(DatabaseUrlError::File { .. }))));
        let other = with_secret(|raw| raw.database_url = "mysql://user:hidden@host/db".into()).unwrap_err();
        assert!(!format!("{other} {other:?}").contains("hidden"));
        for change in
            [|raw: &mut RawConfig| raw.max_connections = 0, |raw: &mut RawConfig| raw.pricing_interval_ms = 0]
        {
            assert!(matches!(
                with_secret(change),
                Err(ConfigError::Setting(SettingError::OutOfRange { .. }))
            ));
        }
    }
}
