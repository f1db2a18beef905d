//! The model: what a weight file says, its weights, and the forward pass over a [`crate::StepPlan`].
//!
//! It owns the meaning of GGUF's keys and tensors. It never schedules, samples or decides which page belongs to whom,
//! and it never panics on a file: what it does not understand is a [`LoadError`]. Start reading at
//! [`forward::Model::forward`]; [`ops::Ops`] is the seam under it, so that the reference and the fast kernels run the
//! same code.

mod facts;
pub(crate) mod forward;
mod load_error;
mod model_file;
pub mod ops;
mod scratch;
mod tokenizer_metadata;
pub(crate) mod weights;

pub use facts::ModelFacts;
pub use load_error::LoadError;
pub use model_file::ModelFile;
pub use tokenizer_metadata::TokenizerMetadata;

#[cfg(test)]
mod test_file;
#[cfg(test)]
mod tests;
