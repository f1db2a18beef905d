//! The shape of the source, held by tests: who may import whom, how long a file may be, where SQL may stand.
//! Every rule here is one that we measure; a rule that cannot be measured belongs in CONTRIBUTING.md.
#![allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes, reason = "a test fails by panicking")]

mod crate_graph;
mod documents;
mod length;
mod samples;
mod source;
mod tree;
