use std::sync::Arc;

use chrono::TimeDelta;
use weir_schemas::config_snapshot::ConfigSnapshot;
use weir_schemas::ids::GatewayId;

use super::*;
use crate::indexed_config::CurrentConfig;
use crate::testing::{Issuer, TokenClaims, key, now, snapshot, tenant};

fn gateway() -> GatewayId {
    GatewayId::from_u128(9)
}

fn config(change: impl FnOnce(&mut ConfigSnapshot)) -> CurrentConfig {
    let mut snapshot = snapshot(&Issuer::new(1), gateway(), "sha256:00");
    change(&mut snapshot);
    CurrentConfig::new(gateway(), Arc::new(snapshot))
}

fn ask(config: &CurrentConfig, token: &str) -> Result<Principal, AuthError> {
    let header = format!("Bearer {token}");
    authenticate(&config.load(), Some(header.as_bytes()), now())
}

fn with(change: impl FnOnce(&mut TokenClaims)) -> TokenClaims {
    let mut claims = TokenClaims::default();
    change(&mut claims);
    claims
}

#[test]
fn a_good_key_is_let_in_and_remembered() {
    let (config, token) = (config(|_| ()), Issuer::new(1).token(&TokenClaims::default()));
    for _ in 0..2 {
        assert_eq!(ask(&config, &token), Ok(Principal { tenant: tenant(), key: key() }));
    }
    assert_eq!(config.load().verified_tokens().0.lock().len(), 1);
}

#[test]
fn every_claim_counts() {
    let config = config(|_| ());
    let issuer = Issuer::new(1);
    let check = |claims: TokenClaims, expected: AuthError| {
        assert_eq!(ask(&config, &issuer.token(&claims)), Err(expected));
    };
    let refused = AuthError::Refused;
    check(with(|c| c.iss = "other".into()), refused("signature, issuer or audience"));
    check(with(|c| c.aud = "other".into()), refused("signature, issuer or audience"));
    check(with(|c| c.sub = TenantId::from_u128(77).to_string()), refused("another tenant's key id"));
    check(with(|c| c.sub = "platform".into()), refused("not a tenant's key"));
    check(with(|c| c.jti = KeyId::from_u128(77).to_string()), refused("not in the allow-list"));
    check(with(|c| c.exp = now()), refused("expired"));
    check(with(|c| c.kid = Some(SigningKeyId::from_u128(77))), refused("unknown signing key"));
    check(with(|c| c.scope = "usage:read".into()), AuthError::Scope);
    check(with(|c| c.scope = "notinference".into()), AuthError::Scope);
    // Another issuer's key under our kid.
    let forged = Issuer::new(2).token(&with(|c| c.kid = Some(SigningKeyId::from_u128(1))));
    assert_eq!(ask(&config, &forged), Err(refused("signature, issuer or audience")));
}

#[test]
fn the_allow_list_can_only_narrow() {
    let token = Issuer::new(1).token(&TokenClaims::default());
    let check = |change: fn(&mut ConfigSnapshot), expected: AuthError| {
        assert_eq!(ask(&config(change), &token), Err(expected));
    };
    let refused = AuthError::Refused;
    check(|c| c.resources.keys.clear(), refused("not in the allow-list"));
    check(|c| c.resources.keys[0].scopes = vec![Scope::UsageRead], AuthError::Scope);
    check(|c| c.resources.keys[0].expires_at = now(), refused("expired"));
    check(|c| c.resources.tenants[0].state = TenantState::Suspended, refused("tenant suspended"));
    check(|c| c.resources.tenants.clear(), refused("unknown tenant"));
}

#[test]
fn what_is_remembered_does_not_outlive_revocation_expiry_or_the_signing_key() {
    let token = Issuer::new(1).token(&with(|c| c.exp = now() + TimeDelta::seconds(5)));
    let config = config(|_| ());
    assert!(ask(&config, &token).is_ok());
    let header = format!("Bearer {token}");
    let later = authenticate(&config.load(), Some(header.as_bytes()), now() + TimeDelta::seconds(5));
    assert_eq!(later, Err(AuthError::Refused("expired")));

    let mut revoked = snapshot(&Issuer::new(1), gateway(), "sha256:00");
    revoked.resources.keys.clear();
    config.replace(Arc::new(revoked));
    assert_eq!(ask(&config, &token), Err(AuthError::Refused("not in the allow-list")));

    let rotated = snapshot(&Issuer::new(2), gateway(), "sha256:00");
    config.replace(Arc::new(rotated));
    assert_eq!(ask(&config, &token), Err(AuthError::Refused("unknown signing key")));
}

#[test]
fn headers_that_are_none() {
    let config = config(|_| ());
    let check = |header: Option<&[u8]>, expected: AuthError| {
        assert_eq!(authenticate(&config.load(), header, now()), Err(expected));
    };
    check(None, AuthError::Missing);
    check(Some(b"Bearer "), AuthError::Malformed);
    check(Some(b"Basic abcdefgh"), AuthError::Malformed);
    check(Some(b"Bearer not-a-token"), AuthError::Refused("not a token"));
    check(Some(b"Bearer \xff\xfe\xff\xfe"), AuthError::Refused("not a token"));
    check(Some(&[b'a'; MAX_TOKEN_BYTES + 1]), AuthError::Refused("too long"));
    // alg none, and HS256 with the public key as the secret, are not EdDSA.
    let none = "eyJhbGciOiJub25lIiwia2lkIjoic2lnXzAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAxIn0.e30.";
    assert!(ask(&config, none).is_err());
}
