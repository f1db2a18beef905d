//! The CUDA backend: a device, its memory, and one safe operation for each kernel.
//!
//! Nothing of CUDA is linked: the driver is loaded when a device is opened, and [`probe`] says in words what is missing.
//! All work of a device goes to one stream, in the order of the calls; none of them waits for it but
//! [`Event::wait`]. What a call reads or writes may be dropped at once: the driver waits for the work before it takes memory back.
//!
//! Where to start: [`Device::open`], then [`ops`], which lists the operations with their shapes. What a step tells the kernels
//! lies in [`ops::StepInputs`], written by one copy.

mod device;
mod graph;
mod image;
mod launch;
mod memory;
pub mod ops;
mod peaks;
mod probe;

pub use device::{CudaError, Device, Event};
pub use graph::Graph;
pub use memory::{DeviceBuffer, Element, PinnedBuffer};
pub use peaks::Peaks;
pub use probe::{DeviceInfo, ProbeError, probe};
