//! The control plane's section of the configuration file.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;
use weir_schemas::kafka::{Kafka, KafkaConfigError, RawKafka};
use weir_schemas::rpc::auth::{InternalSecret, SecretError};
use weir_schemas::rpc::setting::{self, DatabaseUrlError};

use crate::store::config::TokenIdentity;

/// What tokens carry as `iss` and `aud` unless an installation says otherwise.
const DEFAULT_TOKEN_NAME: &str = "weir";
const TOKEN_NAME_CHARS_MAX: usize = 200;

/// The section as it stands in the file: `[control_plane]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RawConfig {
    /// Address of the HTTP API.
    pub http_listen: SocketAddr,
    /// Address of the config stream.
    pub rpc_listen: SocketAddr,
    /// Take any free port when one is taken.
    pub port_fallback: bool,
    /// Where the private signing keys are kept.
    pub data_dir: PathBuf,
    /// `postgres://…`; empty: read `database_url_file`.
    pub database_url: String,
    /// File with the database URL, where that holds a password.
    pub database_url_file: PathBuf,
    /// File with the installation's secret.
    pub internal_secret_file: PathBuf,
    /// `iss` of the tokens made here.
    pub issuer: String,
    /// `aud` of the tokens made here.
    pub audience: String,
    /// Where the event log is relayed to; without brokers, nowhere.
    pub kafka: RawKafka,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            http_listen: SocketAddr::from(([127, 0, 0, 1], 7101)),
            rpc_listen: SocketAddr::from(([127, 0, 0, 1], 7102)),
            port_fallback: false,
            data_dir: PathBuf::from("/var/lib/weir/control-plane"),
            database_url: String::new(),
            database_url_file: PathBuf::from("/etc/weir/database_url"),
            internal_secret_file: PathBuf::from("/etc/weir/internal_secret"),
            issuer: DEFAULT_TOKEN_NAME.to_owned(),
            audience: DEFAULT_TOKEN_NAME.to_owned(),
            kafka: RawKafka::default(),
        }
    }
}

/// The section, checked.
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) http_listen: SocketAddr,
    pub(crate) rpc_listen: SocketAddr,
    pub(crate) port_fallback: bool,
    pub(crate) data_dir: PathBuf,
    pub(crate) database: PgConnectOptions,
    pub(crate) secret: InternalSecret,
    pub(crate) identity: TokenIdentity,
    pub(crate) kafka: Option<Kafka>,
}

/// What is wrong with the section.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No secret, no internal RPC.
    #[error("control_plane.internal_secret_file")]
    Secret(#[source] SecretError),
    /// No database.
    #[error("in [control_plane]")]
    Database(#[source] DatabaseUrlError),
    /// The broker's settings.
    #[error("in [control_plane.kafka]")]
    Kafka(#[source] KafkaConfigError),
    /// Not usable as a claim.
    #[error("control_plane.{key} must be 1 to {TOKEN_NAME_CHARS_MAX} characters")]
    TokenName {
        /// Which value.
        key: &'static str,
    },
}

impl TryFrom<RawConfig> for Config {
    type Error = ConfigError;

    fn try_from(raw: RawConfig) -> Result<Self, ConfigError> {
        let RawConfig {
            http_listen,
            rpc_listen,
            port_fallback,
            data_dir,
            database_url,
            database_url_file,
            internal_secret_file,
            issuer,
            audience,
            kafka,
        } = raw;
        for (key, value) in [("issuer", &issuer), ("audience", &audience)] {
            if !(1..=TOKEN_NAME_CHARS_MAX).contains(&value.len()) {
                return Err(ConfigError::TokenName { key });
            }
        }
        let secret = InternalSecret::from_file(&internal_secret_file).map_err(ConfigError::Secret)?;
        let url = setting::database_url(&database_url, &database_url_file).map_err(ConfigError::Database)?;
        let database = url.parse().map_err(|_| ConfigError::Database(DatabaseUrlError::Form))?;
        let identity = TokenIdentity { issuer, audience };
        let kafka = kafka.try_into().map_err(ConfigError::Kafka)?;
        Ok(Self { http_listen, rpc_listen, port_fallback, data_dir, database, secret, identity, kafka })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_starts_without_a_secret_and_a_database_and_neither_is_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef0123456789abcdef\n").unwrap();
        let good = RawConfig {
            internal_secret_file: file.path().to_owned(),
            database_url: "postgres:///weir".into(),
            ..RawConfig::default()
        };
        assert!(Config::try_from(good.clone()).is_ok());
        let no_secret = RawConfig { internal_secret_file: "/nowhere".into(), ..good.clone() };
        assert!(matches!(Config::try_from(no_secret), Err(ConfigError::Secret(_))));
        let no_database =
            RawConfig { database_url: String::new(), database_url_file: "/nowhere".into(), ..good.clone() };
        assert!(matches!(
            Config::try_from(no_database),
            Err(ConfigError::Database(DatabaseUrlError::File { .. }))
        ));
        let other = RawConfig { database_url: "mysql://user:hidden@host/db".into(), ..good.clone() };
        let error = Config::try_from(other).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hidden"));
        let nameless = RawConfig { issuer: String::new(), ..good };
        assert!(matches!(Config::try_from(nameless), Err(ConfigError::TokenName { key: "issuer" })));
    }
}
