//! Golden numerics.
