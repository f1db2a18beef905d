//! `GET /.well-known/jwks.json` (RFC 7517, RFC 8037)

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::App;
use crate::http::problem::Problem;

/// A verification key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Jwk {
    /// Key type.
    #[schema(example = "OKP")]
    kty: &'static str,
    /// Curve.
    #[schema(example = "Ed25519")]
    crv: &'static str,
    /// Algorithm.
    #[schema(example = "EdDSA")]
    alg: &'static str,
    /// Use.
    #[serde(rename = "use")]
    #[schema(example = "sig")]
    usage: &'static str,
    /// Which signing key.
    kid: String,
    /// The public key, base64url without padding.
    x: String,
}

/// The keys that tokens are verified with.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Jwks {
    keys: Vec<Jwk>,
}

/// The public keys that tokens are verified with.
#[utoipa::path(get, path = "/.well-known/jwks.json", tag = "system", responses((status = 200, body = Jwks)), security(()))]
pub(crate) async fn jwks(State(app): State<App>) -> Result<Json<Jwks>, Problem> {
    let rows = app.store.verification_keys().await?;
    let jwk = |(kid, x)| Jwk { kty: "OKP", crv: "Ed25519", alg: "EdDSA", usage: "sig", kid, x };
    let keys = rows.into_iter().map(|row| jwk((row.signing_key_id, row.public_key))).collect();
    Ok(Json(Jwks { keys }))
}
