//! The token itself: a JWT signed with Ed25519 (RFC 8037), its claims, and its verification up to the allow-list.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use ed25519_dalek::pkcs8::EncodePrivateKey as _;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use weir_domain::platform::PLATFORM;
use weir_schemas::config_snapshot::Scope;
use weir_schemas::ids::{KeyId, SigningKeyId, TenantId};

use crate::store::config::TokenIdentity;
use crate::store::{Store, StoreError};

/// Ours are under 600 characters; a longer one is not ours and is not parsed.
const TOKEN_CHARS_MAX: usize = 4_096;
/// Another control plane's clock may be ahead of ours by this much when a token has just been made.
const CLOCK_SKEW_S: i64 = 60;

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub(crate) iss: String,
    /// The tenant's id, or `platform`.
    pub(crate) sub: String,
    pub(crate) aud: String,
    /// The key's id.
    pub(crate) jti: KeyId,
    /// Scopes separated by spaces.
    pub(crate) scope: String,
    pub(crate) iat: i64,
    pub(crate) exp: i64,
}

/// Why a token is not accepted. The caller is told only that it is not.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    /// Malformed, forged, foreign, expired, or revoked.
    #[error("the token is not valid")]
    Invalid,
    /// It cannot be judged now.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Whose token it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// An operator's.
    Platform,
    /// A tenant's.
    Tenant(TenantId),
}

/// A verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(super) subject: Subject,
    pub(super) key: KeyId,
    pub(super) scopes: Vec<Scope>,
}

/// Signs the claims. The private key is the 32-byte seed of RFC 8032.
pub(super) fn sign(
    claims: &Claims,
    kid: SigningKeyId,
    private_key: &ed25519_dalek::SigningKey,
) -> Result<String, jsonwebtoken::errors::Error> {
    let der = private_key.to_pkcs8_der().expect("a fixed-length key always encodes");
    let mut header = Header::new(Algorithm::EdDSA);
    header.kid = Some(kid.to_string());
    jsonwebtoken::encode(&header, claims, &EncodingKey::from_ed_der(der.as_bytes()))
}

/// The public key as it stands in a JWK's `x`.
pub(super) fn public_key(private_key: &ed25519_dalek::SigningKey) -> String {
    URL_SAFE_NO_PAD.encode(private_key.verifying_key().as_bytes())
}

/// Verifies a token against signature, issuer, audience, times, and the allow-list at `now`.
pub(crate) async fn verify(
    store: &Store,
    identity: &TokenIdentity,
    token: &str,
    now: DateTime<Utc>,
) -> Result<Verified, TokenError> {
    if token.len() > TOKEN_CHARS_MAX {
        return Err(TokenError::Invalid);
    }
    let header = jsonwebtoken::decode_header(token).map_err(|_| TokenError::Invalid)?;
    let kid: SigningKeyId = header.kid.and_then(|kid| kid.parse().ok()).ok_or(TokenError::Invalid)?;
    let public_key = store.verification_key(kid).await?.ok_or(TokenError::Invalid)?;
    let claims = check(token, &public_key, identity, now).ok_or(TokenError::Invalid)?;
    let asked: Vec<Scope> = claims
        .scope
        .split(' ')
        .filter_map(|name| Scope::ALL.into_iter().find(|scope| scope.as_str() == name))
        .collect();
    let (subject, allowed) = if claims.sub == PLATFORM {
        let good = store.is_platform_key(claims.jti, now).await?;
        (Subject::Platform, good.then(|| vec![Scope::PlatformAdmin]))
    } else {
        let tenant: TenantId = claims.sub.parse().map_err(|_| TokenError::Invalid)?;
        (Subject::Tenant(tenant), store.allowed_scopes(tenant, claims.jti, now).await?)
    };
    let allowed = allowed.ok_or(TokenError::Invalid)?;
    // The token cannot widen what the allow-list grants, nor the other way round.
    let scopes = allowed.into_iter().filter(|scope| asked.contains(scope)).collect();
    Ok(Verified { subject, key: claims.jti, scopes })
}

/// What needs no store: signature, issuer, audience and times.
fn check(token: &str, public_key: &str, identity: &TokenIdentity, now: DateTime<Utc>) -> Option<Claims> {
    let key = DecodingKey::from_ed_components(public_key).ok()?;
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.set_issuer(&[&identity.issuer]);
    validation.set_audience(&[&identity.audience]);
    validation.set_required_spec_claims(&["iss", "aud", "sub", "exp"]);
    // Judged below, by our own clock.
    validation.validate_exp = false;
    let claims = jsonwebtoken::decode::<Claims>(token, &key, &validation).ok()?.claims;
    let now = now.timestamp();
    (now < claims.exp && claims.iat <= now.saturating_add(CLOCK_SKEW_S)).then_some(claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> TokenIdentity {
        TokenIdentity { issuer: "weir".into(), audience: "weir".into() }
    }

    fn claims() -> Claims {
        Claims {
            iss: "weir".into(),
            sub: TenantId::from_u128(1).to_string(),
            aud: "weir".into(),
            jti: KeyId::from_u128(2),
            scope: "inference".into(),
            iat: 1_000,
            exp: 2_000,
        }
    }

    #[test]
    fn signature_issuer_audience_and_times_are_checked() {
        let key = ed25519_dalek::SigningKey::from_bytes(&[7; 32]);
        let other = ed25519_dalek::SigningKey::from_bytes(&[8; 32]);
        let check_with = |claims: &Claims, signed_by, seconds| {
            let token = sign(claims, SigningKeyId::from_u128(3), signed_by).unwrap();
            let now = DateTime::from_timestamp(seconds, 0).unwrap();
            check(&token, &public_key(&key), &identity(), now)
        };
        assert_eq!(check_with(&claims(), &key, 1_500), Some(claims()));
        assert_eq!(check_with(&claims(), &other, 1_500), None, "another's signature");
        assert_eq!(check_with(&claims(), &key, 2_000), None, "expired");
        assert_eq!(check_with(&claims(), &key, 900), None, "from the future");
        assert_eq!(check_with(&Claims { iss: "x".into(), ..claims() }, &key, 1_500), None, "issuer");
        assert_eq!(check_with(&Claims { aud: "x".into(), ..claims() }, &key, 1_500), None, "audience");
    }
}
