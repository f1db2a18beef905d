//! A sequence: one prompt and the tokens generated after it, from arrival to its last event.
//!
//! Plain data owned by the scheduler: no channels, no locks, no clocks. What the outside sees of it is in
//! [`SequenceRequest`] on the way in and [`SequenceEvent`] on the way out.

mod event;
mod request;

pub use event::{FinishReason, SequenceEvent, SequenceUsage};
pub use request::{Class, Commit, SequenceRequest, TenantIndex, Verdict};

/// Index of a token in the model's vocabulary.
pub type TokenId = u32;

/// Names a sequence within one engine. Grows with arrival and is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);
