//! The worker's section of the configuration file.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_schemas::kafka::{Kafka, KafkaConfigError, RawKafka};
use weir_schemas::rpc::auth::{InternalSecret, SecretError};
use weir_schemas::rpc::setting::{self, SettingError};

use crate::cuda::{Cuda, RawCuda};
use crate::device::{Device, RawSim, Sim};

/// Share of the memory that the cgroup allows which the KV pool takes by default: small, because weights, the
/// other processes of `weir up` and the page cache want theirs.
pub(crate) const DEFAULT_KV_MEMORY_PERCENT: u8 = 10;
/// Most seats; a step's plan and its outputs are sized by it.
const SEATS_LIMIT: u32 = 1024;
/// Room for prompts that a step has beside a token for each seat: one chunk.
pub(crate) const PREFILL_TOKENS_MIN: u32 = 64;
/// Most new tokens in one step; activations are sized by it.
const STEP_TOKENS_LIMIT: u32 = 8192;

/// The section as it stands in the file: `[worker]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RawConfig {
    /// Address of the RPC listener.
    pub listen: SocketAddr,
    /// Take any free port when that one is taken.
    pub port_fallback: bool,
    /// `http://host:port` under which gateways reach it; empty: the listener's own address.
    pub advertise: String,
    /// Its id, its record log, its last good config.
    pub data_dir: PathBuf,
    /// Deployments of this pool are served.
    pub pool: String,
    /// `http://host:port` of the control plane's RPC.
    pub control_plane: String,
    /// `http://host:port` of the ledger's RPC.
    pub ledger: String,
    /// Where records go; without a broker they go straight to the ledger.
    pub kafka: RawKafka,
    /// File with the installation's secret.
    pub internal_secret_file: PathBuf,
    /// What runs the forward passes.
    pub device: Device,
    /// Compute threads; 0: one for each core.
    pub threads: usize,
    /// On a CPU: the KV pool's share of the memory that the cgroup allows.
    pub kv_memory_percent: u8,
    /// Bound of that share; 0: none.
    pub kv_memory_max_bytes: u64,
    /// The KV pool's size; 0: by the share.
    pub kv_memory_bytes: u64,
    /// Sequences that run at once; 0: as many as suit the device.
    pub max_seats: u32,
    /// New tokens in one step; 0: as many as suit the device.
    pub step_tokens: u32,
    /// How long running sequences may go on after a stop was asked for.
    pub drain_timeout_ms: u64,
    /// The GPU.
    pub cuda: RawCuda,
    /// The simulated device.
    pub sim: RawSim,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7301)),
            port_fallback: false,
            advertise: String::new(),
            data_dir: PathBuf::from("/var/lib/weir/worker"),
            pool: "default".to_owned(),
            control_plane: "http://127.0.0.1:7102".to_owned(),
            ledger: "http://127.0.0.1:7103".to_owned(),
            kafka: RawKafka::default(),
            internal_secret_file: PathBuf::from("/etc/weir/internal_secret"),
            device: Device::default(),
            threads: 0,
            kv_memory_percent: DEFAULT_KV_MEMORY_PERCENT,
            kv_memory_max_bytes: 0,
            kv_memory_bytes: 0,
            max_seats: 0,
            step_tokens: 0,
            drain_timeout_ms: 30_000,
            cuda: RawCuda::default(),
            sim: RawSim::default(),
        }
    }
}

/// Why the section cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Internal RPC without a secret would be open to anyone.
    #[error("worker.internal_secret_file: the worker does not start without the internal secret")]
    Secret(#[source] SecretError),
    /// The `kafka` table.
    #[error("the worker's Kafka settings cannot be used")]
    Kafka(#[source] KafkaConfigError),
    /// A number outside its range, or an address that is none.
    #[error("worker.{0}")]
    Setting(SettingError),
    /// The simulated device.
    #[error("worker.sim.{key}: {reason}")]
    Sim {
        /// The setting.
        key: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No pool name, so nothing would ever be served.
    #[error("worker.pool is empty")]
    EmptyPool,
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
    pub(crate) pool: String,
    pub(crate) control_plane: String,
    pub(crate) ledger: String,
    pub(crate) kafka: Option<Kafka>,
    pub(crate) secret: InternalSecret,
    pub(crate) device: Device,
    pub(crate) cuda: Cuda,
    pub(crate) sim: Sim,
    pub(crate) threads: usize,
    pub(crate) kv_memory: KvMemory,
    pub(crate) max_seats: u32,
    pub(crate) step_tokens: u32,
    pub(crate) drain_timeout: Duration,
}

/// How large the KV pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KvMemory {
    /// A share of what the cgroup allows.
    Share {
        /// Hundredths of it.
        percent: u8,
        /// Never more than this.
        max_bytes: u64,
    },
    /// Exactly this.
    Bytes(u64),
}

impl TryFrom<RawConfig> for Config {
    type Error = ConfigError;

    fn try_from(raw: RawConfig) -> Result<Self, ConfigError> {
        let RawConfig {
            listen,
            port_fallback,
            advertise,
            data_dir,
            pool,
            control_plane,
            ledger,
            kafka,
            internal_secret_file,
            device,
            threads,
            kv_memory_percent,
            kv_memory_max_bytes,
            kv_memory_bytes,
            max_seats,
            step_tokens,
            drain_timeout_ms,
            cuda,
            sim,
        } = raw;
        setting::in_range("kv_memory_percent", u64::from(kv_memory_percent), 1, 90)?;
        setting::in_range("max_seats", u64::from(max_seats), 0, u64::from(SEATS_LIMIT))?;
        if step_tokens != 0 {
            let min = u64::from(max_seats.max(1) + PREFILL_TOKENS_MIN);
            setting::in_range("step_tokens", u64::from(step_tokens), min, u64::from(STEP_TOKENS_LIMIT))?;
        }
        setting::in_range("drain_timeout_ms", drain_timeout_ms, 0, 3_600_000)?;
        if pool.is_empty() {
            return Err(ConfigError::EmptyPool);
        }
        setting::http_address("control_plane", &control_plane)?;
        setting::http_address("ledger", &ledger)?;
        Ok(Self {
            listen,
            port_fallback,
            advertise: setting::advertised("advertise", advertise)?,
            data_dir,
            pool,
            control_plane,
            ledger,
            kafka: kafka.try_into().map_err(ConfigError::Kafka)?,
            secret: InternalSecret::from_file(&internal_secret_file).map_err(ConfigError::Secret)?,
            device,
            cuda: cuda.try_into()?,
            sim: sim.try_into()?,
            threads,
            kv_memory: match kv_memory_bytes {
                0 => KvMemory::Share {
                    percent: kv_memory_percent,
                    max_bytes: if kv_memory_max_bytes == 0 { u64::MAX } else { kv_memory_max_bytes },
                },
                bytes => KvMemory::Bytes(bytes),
            },
            max_seats,
            step_tokens,
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
        assert_eq!(
            with_secret(|_| ()).unwrap().kv_memory,
            KvMemory::Share { percent: 10, max_bytes: u64::MAX }
        );
        let without = RawConfig { internal_secret_file: "/nowhere".into(), ..RawConfig::default() };
        assert!(matches!(Config::try_from(without), Err(ConfigError::Secret(_))));
    }

    #[test]
    fn each_bad_value_names_its_key() {
        let check = |key: &str, change: fn(&mut RawConfig)| {
            let error = with_secret(change).unwrap_err().to_string();
            assert!(error.contains(&format!("worker.{key}")), "{error}");
        };
        check("kv_memory_percent", |raw| raw.kv_memory_percent = 0);
        check("max_seats", |raw| raw.max_seats = 5000);
        check("cuda.memory_percent", |raw| raw.cuda.memory_percent = 0);
        check("step_tokens", |raw| raw.step_tokens = 64);
        check("step_tokens", |raw| (raw.max_seats, raw.step_tokens) = (100, 163));
        check("drain_timeout_ms", |raw| raw.drain_timeout_ms = u64::MAX);
        check("pool", |raw| raw.pool.clear());
        check("ledger", |raw| raw.ledger = "127.0.0.1:1".into());
        check("control_plane", |raw| raw.control_plane = "https://x:1".into());
        check("advertise", |raw| raw.advertise = "nonsense".into());
    }
}
