//! The definition of correct: every operation in plain single precision, one obvious loop each.
//!
//! Nothing here is fast and nothing here is unsafe. The fast kernels are tested against these functions, and these are
//! held to Transformers by the engine's golden files. Activations are row-major `[rows, columns]`. Lengths that do not
//! fit together are bugs of the caller and panic.

mod activation;
mod attention;
mod matmul;
mod rms_norm;
mod rope;

pub use activation::{gelu_tanh_mul, silu_mul, softmax};
pub use attention::attention;
pub use matmul::{dot, matmul};
pub use rms_norm::rms_norm;
pub use rope::rope;
