//! The engine: one synchronous owner of a model's batch.
//!
//! It owns the step loop (`plan → execute → commit`), the scheduler, the paged KV cache, sampling and the
//! model's forward pass. It never touches a socket, a clock, an async runtime, a tenant's name or a wire
//! type: the worker converts those, and injects what must run inside the commit ([`sequence::Commit`]).
//!
//! Start reading at [`Engine::step`]. The joint between its halves is [`step::StepPlan`]: plain data
//! for one forward pass, made by `scheduler` (which knows no model) and run by an [`executor::Executor`]
//! (which knows no scheduler).
#![warn(missing_docs)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::panic,
        clippy::allow_attributes,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )
)]

pub mod engine;
pub mod executor;
pub mod kv_cache;
pub mod model;
pub mod sampling;
mod scheduler;
pub mod sequence;
pub mod step;

pub use crate::engine::{
    AddError, Engine, EngineConfig, EngineCounters, EngineError, EngineLoad, StepReport,
};
pub use crate::executor::{Capacity, Executor, ExecutorError, LayoutId, Ticket};
pub use crate::sampling::{Sampler, SamplingParams};
pub use crate::sequence::{
    Advance, Class, Commit, FinishReason, SequenceEvent, SequenceId, SequenceRequest, SequenceUsage, Sink,
    TenantIndex, TokenId, Verdict,
};
pub use crate::step::{
    BlockTables, Page, PageCopy, PlanRow, RowInput, Sample, Seat, SeatSetup, StepOutput, StepPlan,
    TableUpdate, TokenLogprobs, TokenMask,
};
