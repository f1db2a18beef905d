//! Stage 1, authenticate: is this token one that the control plane lets in now? Offline, against the config in
//! force. "What happens when a key is revoked" is answered here: its id is no longer among the snapshot's keys, so
//! [`authenticate`] refuses it from the next request on; running requests are not looked at again.
//!
//! A token is good if its signature verifies with the snapshot's verification key of that `kid`, issuer, audience and
//! expiry fit, *and* its `jti` is in the allow-list with the same tenant. Nothing here logs or returns a token.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use weir_schemas::config_snapshot::{Key, Scope, TenantState, VerificationKey};
use weir_schemas::ids::{KeyId, SigningKeyId, TenantId};

use crate::indexed_config::IndexedConfig;

/// Ours are under 700 bytes; whatever is longer is refused before any work is done on it.
const MAX_TOKEN_BYTES: usize = 4096;
/// Tokens remembered as verified: a hash and a time each, about 5 MB. Cleared when full, which costs one signature
/// check (tens of microseconds) for each token still in use.
const MAX_VERIFIED: usize = 65_536;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Principal {
    pub(crate) tenant: TenantId,
    pub(crate) key: KeyId,
}

/// Why a caller is not let in. The reason is for the log; the caller is told no more than that the key is not good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthError {
    #[error("no API key")]
    Missing,
    #[error("the Authorization header is not 'Bearer <key>'")]
    Malformed,
    #[error("API key refused: {0}")]
    Refused(&'static str),
    #[error("the key lacks the scope inference")]
    Scope,
}

/// A signing key's public half, ready for use.
pub(crate) struct Verifier {
    key: DecodingKey,
    validation: Validation,
}

impl Verifier {
    /// `None` when `x` is not an Ed25519 public key's base64url form.
    pub(crate) fn new(key: &VerificationKey) -> Option<Self> {
        let decoded = DecodingKey::from_ed_components(&key.x).ok()?;
        if decoded.as_bytes().len() != 32 {
            return None;
        }
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.set_issuer(&[&key.issuer]);
        validation.set_audience(&[&key.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        // Expiry is judged against the clock that was handed in, at each use.
        validation.validate_exp = false;
        Some(Self { key: decoded, validation })
    }
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier")
    }
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    jti: String,
    #[serde(default)]
    scope: String,
    exp: i64,
}

/// What a verified signature proved.
#[derive(Debug, Clone, Copy)]
struct Verified {
    tenant: TenantId,
    key: KeyId,
    expires_at: i64,
    inference: bool,
}

/// Signature checks already done, by SHA-256 of the token. Valid as long as the verification keys do not change.
#[derive(Debug, Default)]
pub(crate) struct VerifiedTokens(Mutex<HashMap<[u8; 32], Verified>>);

/// Judges an Authorization header.
pub(crate) fn authenticate(
    config: &IndexedConfig,
    authorization: Option<&[u8]>,
    now: DateTime<Utc>,
) -> Result<Principal, AuthError> {
    let token = bearer_token(authorization.ok_or(AuthError::Missing)?)?;
    let hash: [u8; 32] = Sha256::digest(token).into();
    let remembered = config.verified_tokens().0.lock().get(&hash).copied();
    let verified = match remembered {
        Some(verified) => verified,
        None => {
            let verified = verify(config, token)?;
            let mut cache = config.verified_tokens().0.lock();
            if cache.len() >= MAX_VERIFIED {
                cache.clear();
            }
            cache.insert(hash, verified);
            verified
        }
    };
    admit(config, verified, now)
}

fn bearer_token(header: &[u8]) -> Result<&[u8], AuthError> {
    let header = header.trim_ascii();
    if header.len() > MAX_TOKEN_BYTES {
        return Err(AuthError::Refused("too long"));
    }
    let (scheme, token) = header.split_at_checked("bearer ".len()).ok_or(AuthError::Malformed)?;
    if !scheme.eq_ignore_ascii_case(b"bearer ") {
        return Err(AuthError::Malformed);
    }
    match token.trim_ascii() {
        b"" => Err(AuthError::Missing),
        token => Ok(token),
    }
}

fn verify(config: &IndexedConfig, token: &[u8]) -> Result<Verified, AuthError> {
    let header = jsonwebtoken::decode_header(token).map_err(|_| AuthError::Refused("not a token"))?;
    let kid: SigningKeyId =
        header.kid.as_deref().and_then(|kid| kid.parse().ok()).ok_or(AuthError::Refused("no key id"))?;
    let verifier = config.verifier(kid).ok_or(AuthError::Refused("unknown signing key"))?;
    let claims = jsonwebtoken::decode::<Claims>(token, &verifier.key, &verifier.validation)
        .map_err(|_| AuthError::Refused("signature, issuer or audience"))?
        .claims;
    Ok(Verified {
        tenant: claims.sub.parse().map_err(|_| AuthError::Refused("not a tenant's key"))?,
        key: claims.jti.parse().map_err(|_| AuthError::Refused("no token id"))?,
        expires_at: claims.exp,
        inference: claims.scope.split(' ').any(|scope| scope == Scope::Inference.as_str()),
    })
}

/// What can change without the token changing: time, the allow-list, the tenant.
fn admit(config: &IndexedConfig, token: Verified, now: DateTime<Utc>) -> Result<Principal, AuthError> {
    let key: &Key = config.key(token.key).ok_or(AuthError::Refused("not in the allow-list"))?;
    if key.tenant != token.tenant {
        return Err(AuthError::Refused("another tenant's key id"));
    }
    if now.timestamp() >= token.expires_at || now >= key.expires_at {
        return Err(AuthError::Refused("expired"));
    }
    match config.tenant(key.tenant).map(|tenant| tenant.state) {
        Some(TenantState::Active) => {}
        Some(TenantState::Suspended) => return Err(AuthError::Refused("tenant suspended")),
        None => return Err(AuthError::Refused("unknown tenant")),
    }
    if !token.inference || !key.scopes.contains(&Scope::Inference) {
        return Err(AuthError::Scope);
    }
    Ok(Principal { tenant: key.tenant, key: key.id })
}

#[cfg(test)]
mod tests;
