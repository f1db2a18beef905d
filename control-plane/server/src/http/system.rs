//! What is public: liveness, readiness, metrics, verification keys, the contract.

pub(crate) mod health;
pub(crate) mod jwks;
pub(crate) mod metrics;
pub(crate) mod openapi;
