//! A signing key, the tokens it mints and a small config around them: for unit tests and, by path, for `tests/it`.

use chrono::{DateTime, TimeDelta, Utc};
use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::EncodePrivateKey;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::json;
use weir_schemas::config_snapshot::{
    Alias, AliasTarget, ConfigSnapshot, Deployment, Key, Limits, ModelLimits, Overload, PinnedVersion,
    QuotaLease, Resources, Revision, Scope, Slo, Tenant, TenantState, VerificationKey,
};
use weir_schemas::ids::{AliasId, DeploymentId, GatewayId, KeyId, SigningKeyId, TenantId, VersionId};

pub(crate) const MODEL: &str = "small-model";
pub(crate) const CONTEXT_LIMIT: u32 = 1024;

pub(crate) fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

pub(crate) fn tenant() -> TenantId {
    TenantId::from_u128(1)
}

pub(crate) fn key() -> KeyId {
    KeyId::from_u128(2)
}

pub(crate) fn version() -> VersionId {
    VersionId::from_u128(3)
}

/// Who mints keys.
pub(crate) struct Issuer {
    kid: SigningKeyId,
    signing: SigningKey,
}

/// What stands in a token.
#[derive(Clone)]
pub(crate) struct TokenClaims {
    pub(crate) kid: Option<SigningKeyId>,
    pub(crate) iss: String,
    pub(crate) aud: String,
    pub(crate) sub: String,
    pub(crate) jti: String,
    pub(crate) scope: String,
    pub(crate) exp: DateTime<Utc>,
}

impl Default for TokenClaims {
    fn default() -> Self {
        Self {
            kid: None,
            iss: "weir".into(),
            aud: "weir-api".into(),
            sub: tenant().to_string(),
            jti: key().to_string(),
            scope: "inference usage:read".into(),
            exp: now() + TimeDelta::days(365 * 20),
        }
    }
}

impl Issuer {
    pub(crate) fn new(seed: u8) -> Self {
        Self { kid: SigningKeyId::from_u128(u128::from(seed)), signing: SigningKey::from_bytes(&[seed; 32]) }
    }

    pub(crate) fn verification_key(&self) -> VerificationKey {
        use base64::Engine;
        let x =
            base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(self.signing.verifying_key().as_bytes());
        VerificationKey { kid: self.kid, x, issuer: "weir".into(), audience: "weir-api".into() }
    }

    pub(crate) fn token(&self, claims: &TokenClaims) -> String {
        let der = self.signing.to_pkcs8_der().unwrap();
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(claims.kid.unwrap_or(self.kid).to_string());
        let claims = json!({
            "iss": claims.iss, "aud": claims.aud, "sub": claims.sub, "jti": claims.jti, "scope": claims.scope,
            "iat": now().timestamp(), "exp": claims.exp.timestamp(),
        });
        jsonwebtoken::encode(&header, &claims, &EncodingKey::from_ed_der(der.as_bytes())).unwrap()
    }
}

/// One tenant with one key and no limits, one model; no replica yet.
pub(crate) fn snapshot(issuer: &Issuer, gateway: GatewayId, tokenizer_digest: &str) -> ConfigSnapshot {
    let resources = Resources {
        tenants: vec![Tenant {
            id: tenant(),
            state: TenantState::Active,
            weight: 1,
            limits: Limits::default(),
            may_overflow: false,
            model_limits: ModelLimits::new(),
        }],
        keys: vec![Key {
            id: key(),
            tenant: tenant(),
            scopes: vec![Scope::Inference, Scope::UsageRead],
            limits: Limits::default(),
            model_limits: ModelLimits::new(),
            expires_at: now() + TimeDelta::days(365 * 20),
        }],
        verification_keys: vec![issuer.verification_key()],
        aliases: vec![Alias {
            id: AliasId::from_u128(4),
            name: MODEL.into(),
            targets: vec![AliasTarget { version: version(), weight: 1 }],
            created_at: now(),
        }],
        versions: vec![PinnedVersion {
            id: version(),
            model: "Small".into(),
            weights_uri: "file:///nowhere".into(),
            digest: format!("sha256:{}", "ab".repeat(32)),
            dtype: "F32".into(),
            parameter_count: 1,
            context_limit: CONTEXT_LIMIT,
            tokenizer_digest: tokenizer_digest.into(),
        }],
        deployments: vec![Deployment {
            id: DeploymentId::from_u128(5),
            version: version(),
            pool: "default".into(),
            replicas: 1,
            slo: Slo::default(),
            overload: Overload::default(),
        }],
        replicas: vec![],
        leases: vec![QuotaLease {
            tenant: tenant(),
            gateway,
            epoch: 1,
            share: Limits::default(),
            model_shares: ModelLimits::new(),
        }],
        budgets: vec![],
    };
    ConfigSnapshot { revision: Revision { epoch: 1, position: 1 }, resources }
}
