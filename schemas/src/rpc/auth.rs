//! The shared secret of internal RPC: one metadata entry, compared in constant time. Nothing internal is served
//! without it; a tenant's key is never accepted in its place.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

/// The metadata key that carries the secret.
pub const SECRET_METADATA_KEY: &str = "x-weir-internal-secret";
/// Shorter secrets are refused: 32 characters of hex are 128 bits.
const MIN_SECRET_CHARS: usize = 32;
/// A secret file is one line; anything longer is not one.
const MAX_SECRET_CHARS: usize = 512;

/// Why internal RPC cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the internal secret from {path}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Too short, too long, or not printable ASCII.
    #[error(
        "the internal secret must be {MIN_SECRET_CHARS} to {MAX_SECRET_CHARS} printable ASCII characters"
    )]
    Unusable,
}

/// The secret shared by the processes of one installation. Neither `Debug` nor an error shows it.
#[derive(Clone)]
pub struct InternalSecret(Arc<MetadataValue<Ascii>>);

impl InternalSecret {
    /// Takes the secret from a string, surrounding white space removed.
    pub fn new(secret: &str) -> Result<Self, SecretError> {
        let secret = secret.trim();
        let usable = (MIN_SECRET_CHARS..=MAX_SECRET_CHARS).contains(&secret.len())
            && secret.bytes().all(|byte| byte.is_ascii_graphic());
        if !usable {
            return Err(SecretError::Unusable);
        }
        let mut value: MetadataValue<Ascii> = secret.parse().map_err(|_| SecretError::Unusable)?;
        value.set_sensitive(true);
        Ok(Self(Arc::new(value)))
    }

    /// Reads the secret from a file.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| SecretError::Read { path: path.display().to_string(), source })?;
        Self::new(&text)
    }

    /// A value that only holders of the secret can compute and from which it cannot be found: the root of what must
    /// differ between installations (cache salts). `label` names the use.
    pub fn derive(&self, label: &str) -> [u8; 32] {
        let mut hasher = Sha256::new();
        hasher.update((label.len() as u64).to_le_bytes());
        hasher.update(label);
        hasher.update(self.0.as_encoded_bytes());
        hasher.finalize().into()
    }

    /// Puts the secret on every outgoing call.
    pub fn attach(&self) -> AttachSecret {
        AttachSecret(self.clone())
    }

    /// Refuses every incoming call that does not carry the secret.
    pub fn require(&self) -> RequireSecret {
        RequireSecret(self.clone())
    }
}

impl fmt::Debug for InternalSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InternalSecret")
    }
}

/// Client interceptor: see [`InternalSecret::attach`].
#[derive(Debug, Clone)]
pub struct AttachSecret(InternalSecret);

impl Interceptor for AttachSecret {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert(SECRET_METADATA_KEY, self.0.0.as_ref().clone());
        Ok(request)
    }
}

/// Server interceptor: see [`InternalSecret::require`].
#[derive(Debug, Clone)]
pub struct RequireSecret(InternalSecret);

impl Interceptor for RequireSecret {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let given = request.metadata().get(SECRET_METADATA_KEY).map(|value| value.as_encoded_bytes());
        match given {
            Some(given) if bool::from(given.ct_eq(self.0.0.as_encoded_bytes())) => Ok(request),
            Some(_) => Err(Status::unauthenticated("wrong internal secret")),
            None => Err(Status::unauthenticated("internal RPC: the shared secret is required")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn only_the_same_secret_passes() {
        let secret = InternalSecret::new(SECRET).unwrap();
        let other = InternalSecret::new(&SECRET.replace('0', "f")).unwrap();
        let call = |attach: &InternalSecret| attach.attach().call(Request::new(())).unwrap();
        assert!(secret.require().call(call(&secret)).is_ok());
        for refused in [call(&other), Request::new(())] {
            let status = secret.require().call(refused).unwrap_err();
            assert_eq!(status.code(), tonic::Code::Unauthenticated);
        }
    }

    #[test]
    fn derived_values_depend_on_label_and_secret() {
        let secret = InternalSecret::new(SECRET).unwrap();
        let other = InternalSecret::new(&SECRET.replace('0', "f")).unwrap();
        assert_eq!(secret.derive("a"), secret.clone().derive("a"));
        assert_ne!(secret.derive("a"), secret.derive("b"));
        assert_ne!(secret.derive("a"), other.derive("a"));
    }

    #[test]
    fn weak_secrets_are_refused_and_never_shown() {
        for weak in ["", "short", &"x".repeat(513), &format!("{SECRET}\nwith a second line")] {
            assert!(matches!(InternalSecret::new(weak), Err(SecretError::Unusable)));
        }
        assert!(!format!("{:?}", InternalSecret::new(SECRET).unwrap()).contains("0123"));
    }
}
