//! Model files on this machine: where a version's weights lie, whether they are the pinned ones, and what they say.
//!
//! Nothing is loaded before its SHA-256 has been compared with the pinned version's digest. Hashing gigabytes takes
//! seconds, so a verified file is remembered by path, size, modification time and inode ([`verified`]).

mod inspect;
mod model_text;
mod verified;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub use inspect::{Inspection, inspect};
pub(crate) use model_text::extract as model_text;
use verified::{FileStamp, Verified};

/// Read at once while hashing: large enough for the disk, small enough for the cache.
const HASH_CHUNK_BYTES: usize = 1 << 20;

/// Why an artifact cannot be used. The text is for the operator, who sees it as the version's state.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// Not a `file:///…` URI.
    #[error("weights_uri '{uri}' is not of the form file:///path; other stores are not supported yet")]
    Uri {
        /// What the version says, shortened.
        uri: String,
    },
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The file is another one than the pinned one.
    #[error("{path} has the digest {actual}, the version is pinned to {wanted}")]
    Digest {
        /// The file.
        path: String,
        /// What it has.
        actual: String,
        /// What it should have.
        wanted: String,
    },
    /// The engine cannot run it.
    #[error("{path} is not a model that this build can run")]
    Model {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: weir_engine::model::LoadError,
    },
    /// The tokenizer or template in it is not usable.
    #[error("the tokenizer in {path} is not usable")]
    Text {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: weir_text::TextError,
    },
    /// The tokenizer in it is another one than the pinned version says.
    #[error("{path} has the tokenizer digest {actual}, the version is pinned to {wanted}")]
    TokenizerDigest {
        /// The file.
        path: String,
        /// What it has.
        actual: String,
        /// What it should have.
        wanted: String,
    },
}

/// Finds and verifies artifacts.
#[derive(Debug)]
pub(crate) struct ArtifactStore {
    verified: Verified,
}

impl ArtifactStore {
    /// Remembers verified files under `data_dir`.
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self { verified: Verified::open(data_dir.join("verified_artifacts.json")) }
    }

    /// The path of the weights, once their digest is known to be the pinned one. Blocks while hashing.
    pub(crate) fn verify(&self, weights_uri: &str, wanted: &str) -> Result<PathBuf, ArtifactError> {
        let path = local_path(weights_uri)?;
        let unreadable = |source| ArtifactError::Read { path: path.display().to_string(), source };
        let file = File::open(&path).map_err(unreadable)?;
        let stamp = FileStamp::of(&file.metadata().map_err(unreadable)?);
        let actual = match self.verified.get(&path, &stamp) {
            Some(digest) => digest,
            None => {
                tracing::info!(path = %path.display(), bytes = stamp.size_bytes, "verifying the artifact's SHA-256");
                let digest = sha256(file).map_err(unreadable)?;
                self.verified.put(&path, stamp, &digest);
                digest
            }
        };
        if actual == wanted {
            Ok(path)
        } else {
            let path = path.display().to_string();
            Err(ArtifactError::Digest { path, actual, wanted: wanted.to_owned() })
        }
    }
}

/// `file:///path` or `file://localhost/path`; the path is taken as it stands (no percent-encoding).
fn local_path(uri: &str) -> Result<PathBuf, ArtifactError> {
    let path = uri.strip_prefix("file://").map(|rest| rest.strip_prefix("localhost").unwrap_or(rest));
    match path {
        Some(path) if path.starts_with('/') => Ok(PathBuf::from(path)),
        _ => Err(ArtifactError::Uri { uri: uri.chars().take(128).collect() }),
    }
}

/// `sha256:…` of the whole file.
fn sha256(mut file: File) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; HASH_CHUNK_BYTES];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(format!("sha256:{}", hex::encode(hasher.finalize()))),
            length => hasher.update(&chunk[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_file_uris_are_paths() {
        let check = |uri: &str, wanted: Option<&str>| {
            assert_eq!(local_path(uri).ok(), wanted.map(PathBuf::from), "{uri}");
        };
        check("file:///models/a.gguf", Some("/models/a.gguf"));
        check("file://localhost/models/a.gguf", Some("/models/a.gguf"));
        check("file://elsewhere/models/a.gguf", None);
        check("https://example.org/a.gguf", None);
        check("/models/a.gguf", None);
    }

    #[test]
    fn a_file_is_verified_by_content_and_again_once_it_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weights");
        let uri = format!("file://{}", path.display());
        std::fs::write(&path, "abc").unwrap();
        let digest = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let store = ArtifactStore::new(directory.path());
        assert_eq!(store.verify(&uri, digest).unwrap(), path);
        // A later store, so a later run of the process, takes the remembered result.
        assert_eq!(ArtifactStore::new(directory.path()).verify(&uri, digest).unwrap(), path);
        std::fs::write(&path, "abcd").unwrap();
        assert!(matches!(store.verify(&uri, digest), Err(ArtifactError::Digest { .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(store.verify(&uri, digest), Err(ArtifactError::Read { .. })));
    }
}
