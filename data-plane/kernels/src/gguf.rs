//! GGUF model files (versions 2 and 3, little-endian): a mapped file, its typed metadata and its tensor directory.
//!
//! Owns the file format and nothing else: what a tensor or a key *means* is the model's business. Weights are never
//! copied here; [`GgufFile::tensor_data`] lends them out of the mapping. The file is untrusted: every length is checked
//! against what is really there before anything is reserved for it, so a hostile file costs a small multiple of its own
//! size in memory and gives an error.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Start reading at [`GgufFile::open`].

mod directory;
mod mapping;
mod metadata;
mod reader;

use std::path::Path;

pub use directory::{MAX_METADATA_ENTRIES, MAX_TENSORS, TensorInfo};
pub use metadata::{Array, Metadata, MetadataError, Value};

use directory::Directory;
use mapping::Mapping;

use crate::quant::GgmlType;

/// A GGUF file mapped read-only into memory.
#[derive(Debug)]
pub struct GgufFile {
    mapping: Mapping,
    directory: Directory,
}

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The operating system refused to open or map it.
    #[error("cannot read the model file")]
    Io(#[source] std::io::Error),
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file")]
    Magic,
    /// A version this parser does not know (big-endian files look like one too).
    #[error("GGUF version {version} is not supported (2 and 3 are)")]
    Version {
        /// The version field as read.
        version: u32,
    },
    /// The file ends inside something it announced.
    #[error("the file ends inside {what} (at byte {offset}, {wanted} more bytes wanted)")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where reading it started.
        offset: usize,
        /// How many bytes it would have needed.
        wanted: u64,
    },
    /// A count or length over this parser's limit.
    #[error("{what} is {actual}, the limit is {limit}")]
    Limit {
        /// What was counted.
        what: &'static str,
        /// What the file says.
        actual: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// A text that is not UTF-8.
    #[error("{what} is not UTF-8 (at byte {offset})")]
    Utf8 {
        /// Which text.
        what: &'static str,
        /// Where it starts.
        offset: usize,
    },
    /// A metadata value or array element of an unknown or unsupported type.
    #[error("metadata type {code} is not supported")]
    ValueType {
        /// The type code as read.
        code: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("a boolean is {value}, not 0 or 1")]
    Bool {
        /// The byte as read.
        value: u8,
    },
    /// The same key or tensor name twice.
    #[error("{what} `{name}` appears twice")]
    Duplicate {
        /// `key` or `tensor`.
        what: &'static str,
        /// The repeated name, shortened.
        name: String,
    },
    /// `general.alignment` is not a power of two of at least 8 and at most 4096.
    #[error("alignment {alignment} is not a power of two between 8 and 4096")]
    Alignment {
        /// The value as read.
        alignment: u64,
    },
    /// A tensor whose shape is impossible: no or too many dimensions, a zero, an overflow, or rows that are not whole blocks.
    #[error("tensor `{name}` has an impossible shape {dimensions:?} for its type")]
    Shape {
        /// The tensor, shortened.
        name: String,
        /// The dimensions as read, fastest first.
        dimensions: Vec<u64>,
    },
    /// A tensor in a quantisation that is not supported.
    #[error("tensor `{name}` has the unsupported type {code}")]
    TensorType {
        /// The tensor, shortened.
        name: String,
        /// GGML's type code.
        code: u32,
    },
    /// A tensor whose bytes lie (partly) outside the file or off the file's alignment.
    #[error("tensor `{name}` lies outside the file or is misaligned (offset {offset}, {bytes} bytes)")]
    TensorBounds {
        /// The tensor, shortened.
        name: String,
        /// Offset into the data section.
        offset: u64,
        /// Its length.
        bytes: u64,
    },
}

impl GgufFile {
    /// Maps `path` and reads its directory. The file must not change while the value lives (a model artifact is
    /// immutable once it is in place).
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::from_mapping(Mapping::open(path).map_err(GgufError::Io)?)
    }

    /// The same over bytes that are already in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::from_mapping(Mapping::from_bytes(bytes))
    }

    fn from_mapping(mapping: Mapping) -> Result<Self, GgufError> {
        let directory = Directory::parse(mapping.bytes())?;
        Ok(Self { mapping, directory })
    }

    /// The key-value section.
    pub fn metadata(&self) -> &Metadata {
        &self.directory.metadata
    }

    /// Every tensor, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.directory.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.directory.tensor(name)
    }

    /// The bytes of a tensor of this file, in GGML's block layout. Empty if `info` is of another file.
    pub fn tensor_data(&self, info: &TensorInfo) -> &[u8] {
        self.mapping.bytes().get(info.range.clone()).unwrap_or_default()
    }

    /// The tensor of this name, its type and its bytes.
    pub fn tensor_view(&self, name: &str) -> Option<(GgmlType, &TensorInfo, &[u8])> {
        let info = self.tensor(name)?;
        Some((info.ggml_type, info, self.tensor_data(info)))
    }

    /// Length of the whole file.
    pub fn file_bytes(&self) -> usize {
        self.mapping.bytes().len()
    }
}

#[cfg(test)]
mod tests;
