//! Mints tokens. Private keys live in files under the data directory, mode 0600, one a signing key; never in the
//! log, never in Postgres. Control planes that share an installation share that directory.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use ed25519_dalek::SigningKey as PrivateKey;
use weir_domain::key::KeyRecord;
use weir_domain::platform::PLATFORM;
use weir_domain::signing_key::{SigningKey, SigningKeyCommand};
use weir_schemas::config_snapshot::Scope;
use weir_schemas::ids::{SigningKeyId, TenantId};

use super::token::{self, Claims};
use crate::store::config::TokenIdentity;
use crate::store::{StoreError, WriteTransaction};

/// Why no token can be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignerError {
    /// The private keys cannot be read or written.
    #[error("cannot access the signing keys in {directory}")]
    Files {
        /// Where they lie.
        directory: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No active signing key has its private part here.
    #[error("no active signing key has its private part on this machine; rotate the signing keys")]
    NoKey,
    /// The operating system gives no randomness.
    #[error("the operating system gives no randomness")]
    Randomness,
    /// The library refuses to sign.
    #[error("the token cannot be signed")]
    Sign(#[source] jsonwebtoken::errors::Error),
    /// The log cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Holds where the private keys lie and what every token carries.
#[derive(Debug, Clone)]
pub(crate) struct Signer {
    directory: PathBuf,
    identity: TokenIdentity,
}

/// A private key and its id, for the tokens of one write.
pub(crate) struct Minter {
    pub(crate) kid: SigningKeyId,
    private_key: PrivateKey,
    identity: TokenIdentity,
}

impl Signer {
    /// Opens (and makes) the directory.
    pub(crate) fn open(data_dir: &Path, identity: TokenIdentity) -> Result<Self, SignerError> {
        let directory = data_dir.join("signing-keys");
        let signer = Self { directory, identity };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&signer.directory)
            .map_err(|source| signer.files(source))?;
        Ok(signer)
    }

    /// What every token carries besides its own claims.
    pub(crate) const fn identity(&self) -> &TokenIdentity {
        &self.identity
    }

    /// Makes a new active signing key, its private part on disk first.
    pub(crate) async fn create(&self, write: &mut WriteTransaction) -> Result<SigningKeyId, SignerError> {
        let mut seed = [0u8; 32];
        getrandom::fill(&mut seed).map_err(|_| SignerError::Randomness)?;
        let private_key = PrivateKey::from_bytes(&seed);
        let id = SigningKeyId::new(write.now());
        self.keep(id, &seed).map_err(|source| self.files(source))?;
        let public_key = token::public_key(&private_key);
        let now = write.now();
        write.execute::<SigningKey>(id, None, SigningKeyCommand::Create { id, public_key, now }).await?;
        Ok(id)
    }

    /// Makes a signing key if none that is active has its private part here.
    pub(crate) async fn ensure(&self, write: &mut WriteTransaction) -> Result<(), SignerError> {
        match self.minter(write).await {
            Ok(_) => Ok(()),
            Err(SignerError::NoKey) => self.create(write).await.map(|_| ()),
            Err(error) => Err(error),
        }
    }

    /// The newest active key whose private part is here.
    pub(crate) async fn minter(&self, write: &mut WriteTransaction) -> Result<Minter, SignerError> {
        for kid in write.active_signing_keys().await? {
            if let Some(private_key) = self.read(kid).map_err(|source| self.files(source))? {
                return Ok(Minter { kid, private_key, identity: self.identity.clone() });
            }
        }
        Err(SignerError::NoKey)
    }

    /// Removes the private part of a key that no longer signs.
    pub(crate) fn forget(&self, kid: SigningKeyId) -> Result<(), SignerError> {
        match std::fs::remove_file(self.path(kid)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.files(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn path(&self, kid: SigningKeyId) -> PathBuf {
        self.directory.join(format!("{kid}.ed25519"))
    }

    fn keep(&self, kid: SigningKeyId, seed: &[u8; 32]) -> io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(self.path(kid))?;
        file.write_all(hex::encode(seed).as_bytes())?;
        file.sync_all()
    }

    fn read(&self, kid: SigningKeyId) -> io::Result<Option<PrivateKey>> {
        let text = match std::fs::read_to_string(self.path(kid)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut seed = [0u8; 32];
        hex::decode_to_slice(text.trim(), &mut seed)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a signing key"))?;
        Ok(Some(PrivateKey::from_bytes(&seed)))
    }

    fn files(&self, source: io::Error) -> SignerError {
        SignerError::Files { directory: self.directory.display().to_string(), source }
    }
}

impl Minter {
    /// The token of a tenant's key.
    pub(crate) fn tenant_token(&self, tenant: TenantId, key: &KeyRecord) -> Result<String, SignerError> {
        self.token(tenant.to_string(), key)
    }

    /// The token of an operator's key.
    pub(crate) fn platform_token(&self, key: &KeyRecord) -> Result<String, SignerError> {
        self.token(PLATFORM.to_owned(), key)
    }

    fn token(&self, sub: String, key: &KeyRecord) -> Result<String, SignerError> {
        let scope: Vec<&str> = key.scopes.iter().map(|scope: &Scope| scope.as_str()).collect();
        let seconds = |time: DateTime<Utc>| time.timestamp();
        let claims = Claims {
            iss: self.identity.issuer.clone(),
            sub,
            aud: self.identity.audience.clone(),
            jti: key.id,
            scope: scope.join(" "),
            iat: seconds(key.created_at),
            exp: seconds(key.expires_at),
        };
        token::sign(&claims, self.kid, &self.private_key).map_err(SignerError::Sign)
    }
}
