//! The bytes of a model file: mapped, or owned (tests and small artifacts). The one place that maps files.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

#[derive(Debug)]
pub(super) enum Mapping {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Mapping {
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            // An empty file cannot be mapped; the parser gives the error that says what is wrong with it.
            return Ok(Self::Owned(Vec::new()));
        }
        // SAFETY: the mapping is read-only and private to this value. What remains is that another process could
        // truncate or rewrite the file; model artifacts are immutable once placed (the artifact store writes to a
        // temporary name and renames), which `GgufFile::open` states as its condition. A safe copy instead would double
        // the memory of every load.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self::Mapped(map))
    }

    pub(super) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self::Owned(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}
