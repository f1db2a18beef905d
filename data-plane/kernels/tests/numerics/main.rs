//! Every CUDA kernel against a reference in double precision that is written here, through the safe operations, on a driver that
//! runs the kernels on the CPU.
//!
//! Shapes and values come from fixed seeds. Tolerances are multiples of the rounding of the types involved, each with its
//! reason. Every result has the same bits in each of several orders of thread execution. `sanitizers` runs the shapes at the edges once
//! more, in one order, with kernels that were compiled for the address and undefined-behaviour sanitizers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes)]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod attention;
mod choices;
mod dense;
mod embed;
mod logprobs;
mod matmul;
mod matrix;
mod paged;
mod pages;
mod random;
mod rope;
mod sampler;
mod sampling;
mod sanitizers;
mod support;
