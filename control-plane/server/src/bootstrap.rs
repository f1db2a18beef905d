//! An installation's first start: schema, epoch, first signing key, first operator's key. And what an operator can
//! do without an API: rebuild the read models, or make a new admin token when all were lost.

use chrono::TimeDelta;
use weir_domain::key::{KEY_DAYS_MAX, KeyRecord};
use weir_domain::platform::{Platform, PlatformCommand, PlatformId};
use weir_schemas::clock::Clock;
use weir_schemas::config_snapshot::{Limits, ModelLimits, Scope};
use weir_schemas::error_class::ErrorClass;
use weir_schemas::ids::KeyId;

use prometheus_client::metrics::histogram::Histogram;

use crate::auth::{Signer, SignerError};
use crate::config::Config;
use crate::store::{Store, StoreError, WriteTransaction, may_pass};

/// The first operator's key lasts as long as a key can: it is the way in. It can be revoked once there is another.
const BOOTSTRAP_LIFE: TimeDelta = TimeDelta::days(KEY_DAYS_MAX);

/// Why the state could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The schema cannot be brought up to date.
    #[error("the database schema cannot be brought up to date")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// The log cannot be read or written.
    #[error("the event log")]
    #[expect(private_interfaces, reason = "shown, never matched, by main")]
    Store(#[source] StoreError),
    /// The signing keys cannot be read or written.
    #[error("the signing keys")]
    #[expect(private_interfaces, reason = "shown, never matched, by main")]
    Signer(#[source] SignerError),
}

impl BootstrapError {
    /// Whether waiting may help.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Migrate(sqlx::migrate::MigrateError::Execute(error)) => may_pass(error),
            Self::Migrate(_) => false,
            Self::Store(error) | Self::Signer(SignerError::Store(error)) => {
                error.class() == ErrorClass::Unavailable
            }
            Self::Signer(_) => false,
        }
    }
}

impl From<StoreError> for BootstrapError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<SignerError> for BootstrapError {
    fn from(error: SignerError) -> Self {
        Self::Signer(error)
    }
}

/// Brings schema, epoch and signing key into being; returns the first operator's token where there was none.
pub(crate) async fn prepare(
    store: &Store,
    signer: &Signer,
    clock: &Clock,
) -> Result<Option<String>, BootstrapError> {
    store.migrate().await.map_err(BootstrapError::Migrate)?;
    let now = clock.now();
    store.install(now).await?;
    let mut write = store.begin("system", now).await?;
    signer.ensure(&mut write).await?;
    let token = match write.has_platform_keys().await? {
        true => None,
        false => Some(admin_token(&mut write, signer, "bootstrap").await?),
    };
    write.commit().await?;
    Ok(token)
}

async fn admin_token(
    write: &mut WriteTransaction,
    signer: &Signer,
    name: &str,
) -> Result<String, BootstrapError> {
    let minter = signer.minter(write).await?;
    let created_at = write.now();
    let key = KeyRecord {
        id: KeyId::new(created_at),
        name: name.to_owned(),
        scopes: vec![Scope::PlatformAdmin],
        limits: Limits::default(),
        model_limits: ModelLimits::new(),
        signing_key: minter.kid,
        created_at,
        expires_at: created_at + BOOTSTRAP_LIFE,
    };
    let command = PlatformCommand::CreateKey { key: key.clone().into() };
    write.execute::<Platform>(PlatformId, None, command).await?;
    Ok(minter.platform_token(&key)?)
}

fn store(config: &Config) -> Store {
    // Not observed by anyone: the process ends with the command.
    Store::new(config.database.clone(), Histogram::new([1.0]))
}

/// Empties the read models and refills them from the event log; returns the position of the last event. The control
/// plane may run meanwhile: its writes wait.
pub async fn rebuild(config: &Config, clock: &Clock) -> Result<u64, BootstrapError> {
    let store = store(config);
    store.migrate().await.map_err(BootstrapError::Migrate)?;
    let position = store.rebuild(clock.now()).await?;
    store.close().await;
    Ok(position)
}

/// Makes a new operator's key and returns its token, for when every other was lost. It needs what only the operator
/// of the machine has: the database and the private signing keys.
pub async fn issue_admin_token(config: &Config, clock: &Clock) -> Result<String, BootstrapError> {
    let store = store(config);
    store.migrate().await.map_err(BootstrapError::Migrate)?;
    let signer = Signer::open(&config.data_dir, config.identity.clone())?;
    let mut write = store.begin("system", clock.now()).await?;
    signer.ensure(&mut write).await?;
    let token = admin_token(&mut write, &signer, "issued on the machine").await?;
    write.commit().await?;
    store.close().await;
    Ok(token)
}
