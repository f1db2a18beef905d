//! Integration tests of the engine, one binary.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::allow_attributes,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::print_stdout,
    unreachable_pub
)]

mod batching;
mod cuda;
mod ends;
mod fairness;
mod golden;
mod layers;
mod pipeline;
mod prefix_cache;
mod random;
mod random_model;
mod seam;
mod sim;
mod support;
#[expect(dead_code, reason = "broken files are for the unit tests")]
#[path = "../../src/model/test_file.rs"]
mod test_file;
