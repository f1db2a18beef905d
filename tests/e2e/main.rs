//! The whole system on real parts: one file a behaviour.
