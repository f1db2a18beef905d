//! The executor that runs the model on this machine's CPUs.
