//! Why a model file was refused.

use weir_kernels::gguf::{GgufError, MetadataError};

/// Why a model could not be loaded. The text is for the operator: it names the key or tensor at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read, or is not well-formed GGUF.
    #[error("the model file cannot be read")]
    File(#[source] GgufError),
    /// A model family that is not implemented.
    #[error("architecture `{found}` is not supported (`llama` is)")]
    Architecture {
        /// `general.architecture`.
        found: String,
    },
    /// A key that the architecture needs is missing or has another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A key has a value that cannot be right, or asks for something that is not implemented. Guessing on would give
    /// wrong numbers.
    #[error("the model file's `{key}` is {value}: {reason}")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value, as text.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A tensor that the architecture needs is not there.
    #[error("the model file has no tensor `{name}`")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor that would change the results and that nothing here uses.
    #[error("the model file has a tensor `{name}` that this architecture does not use")]
    UnexpectedTensor {
        /// The tensor, shortened.
        name: String,
    },
    /// A tensor of another shape than the metadata announce.
    #[error("tensor `{name}` is {actual:?}, expected {expected:?}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// `[columns, rows]` by the metadata.
        expected: [usize; 2],
        /// Its dimensions in the file, fastest first.
        actual: Vec<u64>,
    },
    /// The kernels refused a tensor or the page layout.
    #[error("{what} does not suit the kernels: {reason}")]
    Kernels {
        /// The tensor or structure.
        what: String,
        /// Their reason.
        reason: String,
    },
    /// The KV budget holds less than one request of full length, or less than a block for each seat.
    #[error(
        "a KV budget of {kv_bytes} bytes gives {num_pages} pages of {page_bytes} bytes; {what} needs {needed_pages} \
         ({needed_bytes} bytes): raise the budget or lower the context limit"
    )]
    KvBudget {
        /// The budget.
        kv_bytes: u64,
        /// Pages it gives.
        num_pages: u64,
        /// Bytes of each.
        page_bytes: u64,
        /// What does not fit.
        what: &'static str,
        /// Pages that it needs.
        needed_pages: u64,
        /// Bytes that it needs.
        needed_bytes: u64,
    },
    /// A dial of the executor's configuration is zero or beyond its limit.
    #[error("`{what}` must be between 1 and {limit}, not {actual}")]
    Config {
        /// The dial.
        what: &'static str,
        /// Its value.
        actual: u64,
        /// The largest accepted value.
        limit: u64,
    },
}
