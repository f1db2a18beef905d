//! What a first start needs to exist, made through the admin API: a tenant, a model and its pinned version, an alias,
//! a deployment, a price, and the tenant's key. Every step looks first, so a later start, or one after a crash in
//! the middle, makes only what is missing.

use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};
use weir_worker::Inspection;

use super::admin::{Admin, id};
use super::dev_env;
use crate::screen::say;

const TENANT: &str = "dev";
const MODEL: &str = "SmolLM2-135M-Instruct";
/// What clients ask for.
pub(super) const ALIAS: &str = "smollm2-135m-instruct";
/// The pool of the worker in this process.
pub(super) const POOL: &str = "default";
const PRICE_BOOK: &str = "dev";
const CURRENCY: &str = "USD";
/// Prices for each million tokens: invented, of the size that such models are sold at.
const PRICE: [(&str, &str); 3] = [
    ("prompt_per_million", "0.10"),
    ("cached_prompt_per_million", "0.05"),
    ("generated_per_million", "0.40"),
];

/// Makes what is missing; returns the tenant's key.
pub(super) async fn ensure(
    admin: &Admin,
    artifact: &Inspection,
    env_file: &Path,
    admin_url: &str,
) -> anyhow::Result<String> {
    let tenant = id(&admin.ensure_named("/tenants", TENANT).await?)?;
    let model = id(&admin.ensure_named("/models", MODEL).await?)?;
    let version = version(admin, &model, artifact).await?;
    price(admin, &version).await?;
    let deployment = json!({ "version_id": version, "pool": POOL });
    let is_ours = |entry: &Value| entry["version_id"] == version.as_str() && entry["pool"] == POOL;
    admin.ensure("/deployments", is_ours, deployment).await?;
    alias(admin, &version).await?;
    api_key(admin, &tenant, env_file, admin_url).await
}

/// Retires gateways that are gone: where `.weir` was removed but the database was not, the gateway of before would hold
/// every limit for ever, and ours none. Called once ours is connected.
pub(super) async fn retire_lost_gateways(admin: &Admin) -> anyhow::Result<()> {
    let is_lost = |node: &Value| {
        node["kind"] == "gateway" && node["connected"] == false && node["retired_at"].is_null()
    };
    while let Some(lost) = admin.find("/nodes", is_lost).await? {
        let id = id(&lost)?;
        say(&format!("weir: the gateway {id} of an earlier installation is gone; retiring it"));
        admin.delete(&format!("/nodes/{id}")).await?;
    }
    Ok(())
}

/// A version is immutable: a file that moved, or another one, is another version.
async fn version(admin: &Admin, model: &str, artifact: &Inspection) -> anyhow::Result<String> {
    let body = json!({
        "model_id": model,
        "weights_uri": artifact.weights_uri,
        "digest": artifact.digest,
        "dtype": artifact.dtype,
        "parameter_count": artifact.parameter_count,
        "context_limit": artifact.context_limit,
        "tokenizer_digest": artifact.tokenizer_digest,
    });
    let same = |entry: &Value| {
        ["model_id", "weights_uri", "digest", "tokenizer_digest"].iter().all(|key| entry[*key] == body[*key])
    };
    id(&admin.ensure("/versions", same, body.clone()).await?)
}

/// Before the deployment, so that no request is ever served without a price.
async fn price(admin: &Admin, version: &str) -> anyhow::Result<()> {
    let body = json!({ "name": PRICE_BOOK, "currency": CURRENCY });
    let book = id(&admin.ensure("/price-books", |entry| entry["name"] == PRICE_BOOK, body).await?)?;
    let mut price = json!({ "version_id": version });
    for (kind, amount) in PRICE {
        price[kind] = amount.into();
    }
    let path = format!("/price-books/{book}/prices");
    admin.ensure(&path, |entry| entry["version_id"] == version, price).await?;
    Ok(())
}

/// An operator may have pointed the alias elsewhere since: it is only corrected if none of its versions' files is
/// here any more, as after the checkout has moved.
async fn alias(admin: &Admin, version: &str) -> anyhow::Result<()> {
    let targets = json!([{ "version_id": version, "weight": 1 }]);
    let is_ours = |entry: &Value| entry["name"] == ALIAS;
    let body = json!({ "name": ALIAS, "targets": targets });
    let alias = admin.ensure("/aliases", is_ours, body).await?;
    for target in alias["targets"].as_array().into_iter().flatten() {
        let id = target["version_id"].as_str().context("a target without a version")?;
        let pinned: Value = admin.get(&format!("/versions/{id}")).await?;
        let file = pinned["weights_uri"].as_str().and_then(|uri| uri.strip_prefix("file://"));
        if file.is_none_or(|file| Path::new(file).exists()) {
            return Ok(());
        }
    }
    say(&format!("the alias {ALIAS} is pointed at the model file of this checkout"));
    admin.put(&format!("/aliases/{}/targets", id(&alias)?), &json!({ "targets": targets })).await
}

/// The key of an earlier start, if it is still good; a new one is shown once and kept in `dev.env` only.
async fn api_key(admin: &Admin, tenant: &str, env_file: &Path, admin_url: &str) -> anyhow::Result<String> {
    if let Some(key) = dev_env::kept(env_file, "WEIR_API_KEY")
        && Admin::new(admin_url, &key)?.may_read("/usage?start_time=0&bucket_width=1d&limit=1").await?
    {
        return Ok(key);
    }
    let body = json!({ "name": "weir up", "scopes": ["inference", "usage:read"] });
    let created: Value = admin.post(&format!("/tenants/{tenant}/keys"), &body).await?;
    created["token"].as_str().map(str::to_owned).context("a new key without its token")
}
