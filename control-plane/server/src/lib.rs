//! The control plane: HTTP API, event store, read models, config publisher, keys and scopes.
//!
//! Owns: the event log and everything projected from it, the private signing keys, and what nodes are told. Never:
//! a request's path (the data plane runs on without it), a token once shown, or a tenant's read that is not behind
//! row-level security. Start reading at [`start`]; then `http.rs` for the operations, `store.rs` for the log,
//! `publisher.rs` for what nodes are told, `http/keys/revoke.rs` for what happens when a key is revoked.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes))]

mod auth;
mod bootstrap;
mod config;
mod event_relay;
mod http;
mod metrics;
mod publisher;
mod scope;
mod start;
mod store;

pub use bootstrap::{BootstrapError, issue_admin_token, rebuild};
pub use config::{Config, ConfigError, RawConfig};
pub use start::{Deps, Running, StartError, start};

/// The API's contract as YAML: what stands in `openapi.yaml` at the root of the repository.
pub fn openapi_yaml() -> String {
    http::openapi_yaml()
}
