//! Numbers: the model held to Transformers, and the fast kernels held to the reference.
//!
//! The fixtures come from `tests/reference/make_fixtures.py`; nothing here needs Python. The model file is fetched and
//! checked by `make models`.

mod driver;
pub(crate) mod fixture;
mod invariance;
mod numbers;
mod whole_engine;
