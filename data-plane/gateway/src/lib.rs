//! The OpenAI-compatible edge: who may ask, what of, how much of it, where it runs, and what is written down about it.
//!
//! Owns a request from its first byte to its charge record. Never: the weights, a scheduling decision, a price, or a
//! call to the control plane on a request's path. Start reading at [`start`], then `http/answer.rs` and `pipeline.rs`,
//! which name the stages in order: authenticate → parse and validate → resolve → render and tokenise → place → admit
//! → route → stream → settle.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes))]

mod admission;
mod authenticate;
mod background;
mod config;
mod error;
mod generation;
mod grammar;
mod http;
mod idempotency;
mod indexed_config;
mod metrics;
mod model_texts;
mod openai;
mod output_budget;
mod overload;
mod pipeline;
mod reading;
mod recent;
mod record;
mod rejections;
mod resolve;
mod routing;
mod self_wakes;
mod start;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod testing_text;
mod tokenise;

pub use config::{Config, ConfigError, RawConfig};
pub use start::{Deps, Running, StartError, start};
