//! What the scheduling tests share: an executor that keeps page contents, and an engine that is checked after
//! every step.

pub mod harness;
pub mod paper_executor;

pub use harness::{Harness, request};
