//! The stand-in for CUDA finds the faults that it is there to find, and finds none where there is none.
#![allow(clippy::unwrap_used, clippy::panic, clippy::allow_attributes)]

mod device;
mod driver;
mod support;
