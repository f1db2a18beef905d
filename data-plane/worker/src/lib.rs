//! The worker: a process that hosts engines.
//!
//! It owns the artifacts on its machine, one engine for each version that its pool's deployments name, the sessions
//! of gateways, and the execution records. It converts between wire types and the engine's; it never admits, routes
//! or prices, and it never parses tokens or weights itself. Start reading at [`start`](start()), then `host`'s step loop.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes))]

mod artifact;
mod cache_salt;
mod config;
mod cuda;
mod device;
mod execution;
mod host;
mod load;
mod local_engine;
mod memory;
mod metrics;
mod reconcile;
mod rpc;
mod session;
mod start;
mod versions;

pub use artifact::{ArtifactError, Inspection, inspect};
pub use config::{Config, ConfigError, RawConfig};
pub use cuda::{Dtype, KvDtype, NoGpu, RawCuda};
pub use device::{Device, RawSim, UnknownDevice};
pub use local_engine::{LocalEngine, LocalError, LocalRequest, LocalSession};
pub use start::{Deps, ReadyProbe, Running, StartError, WorkerFailed, start};
