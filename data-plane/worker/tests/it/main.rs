//! A worker as gateways see it: over its RPC, with the real model. Its config is the snapshot on its disk (there is
//! no control plane), and nobody takes its records (there is no ledger), so they can be read from its log.
#![allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes)]

mod aborts;
mod choices;
mod completion;
mod device;
mod grammar;
mod inspection;
mod prefix_cache;
mod records;
mod refusals;
mod step_times;
mod support;
