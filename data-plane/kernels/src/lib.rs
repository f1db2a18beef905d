//! All of Weir's `unsafe` code: mapped weight files, SIMD kernels and the CPU's thread pool, behind safe functions over
//! checked lengths. It knows tensors and pages; it never knows a model, a sequence's state, a request or a clock.
//!
//! Where to start:
//!
//! - [`gguf`]: a model file, its metadata and its tensors' bytes.
//! - [`quant`]: GGML's block types and their exact values.
//! - [`reference`]: every operation in plain single precision; it *defines* correct.
//! - [`cpu`]: the same operations made fast: [`cpu::Cpu`] is an instruction set and a thread pool, [`cpu::PackedMatrix`] a
//!   weight repacked for it.
//! - `cuda` (feature `cuda`): the same operations on a GPU, through a driver that is loaded at run time.
//! - [`kv`]: the pool of KV pages; [`attention`]: the plain data that an attention call is told.
//!
//! Reproducible by construction: a row's result has the same bits whatever other rows are in the call, however many threads
//! work on it, and on every instruction set. Integer dot products are exact in any order; every floating-point reduction
//! runs along one lane in one fixed order (block after block, position after position), vectors only go *across* outputs.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes))]

mod aligned;
pub mod attention;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod gguf;
pub mod kv;
pub mod quant;
#[cfg(any(test, feature = "cuda"))]
mod random;
pub mod reference;

#[cfg(test)]
mod test_data;
