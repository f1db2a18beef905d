//! The stand-in for CUDA finds the faults that it is there to find, and finds none where there is none.

mod device;
mod driver;
mod support;
