//! Tokenizer and chat template of each version: fetched once from a worker, checked against the digest that the config
//! pins, kept on disk, built once off the async threads, shared by all requests. Weights are never opened here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use weir_schemas::config_snapshot::{PinnedVersion, digest};
use weir_text::{MAX_MODEL_TEXT_BYTES, ModelText, TextError, TextModel};

use crate::routing::Link;

/// Why a version's text is not there.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ModelTextError {
    #[error("no connected worker has the version")]
    NoWorker,
    #[error("no worker could send it: {0}")]
    Fetch(String),
    #[error("the worker sent {actual}, the config pins {pinned}")]
    Digest { pinned: String, actual: String },
    #[error("it cannot be used: {0}")]
    Unusable(Arc<TextError>),
    #[error("the thread that built it failed")]
    Build,
}

/// All model texts of this gateway, by digest.
#[derive(Debug)]
pub(crate) struct ModelTexts {
    directory: PathBuf,
    /// As many as the config has versions; those of dropped versions go with [`Self::retain`].
    built: Mutex<HashMap<String, Arc<OnceCell<Arc<TextModel>>>>>,
}

impl ModelTexts {
    pub(crate) fn new(data_dir: &Path) -> std::io::Result<Self> {
        let directory = data_dir.join("model-text");
        std::fs::create_dir_all(&directory)?;
        Ok(Self { directory, built: Mutex::default() })
    }

    /// The text if it is built already.
    pub(crate) fn get_built(&self, version: &PinnedVersion) -> Option<Arc<TextModel>> {
        self.built.lock().get(&version.tokenizer_digest)?.get().cloned()
    }

    /// The text, from memory, disk, or one of `links`. Concurrent callers share one load; a failed one is tried again
    /// by the next caller.
    pub(crate) async fn get(
        &self,
        version: &PinnedVersion,
        links: &[Arc<Link>],
    ) -> Result<Arc<TextModel>, ModelTextError> {
        let cell = self.built.lock().entry(version.tokenizer_digest.clone()).or_default().clone();
        cell.get_or_try_init(|| self.load(version, links)).await.cloned()
    }

    /// Forgets the texts of versions that the config no longer has; their files stay for a rollback.
    pub(crate) fn retain(&self, versions: &[PinnedVersion]) {
        self.built.lock().retain(|held, _| versions.iter().any(|version| version.tokenizer_digest == *held));
    }

    async fn load(
        &self,
        version: &PinnedVersion,
        links: &[Arc<Link>],
    ) -> Result<Arc<TextModel>, ModelTextError> {
        let path = self.path(&version.tokenizer_digest)?;
        let pinned = version.tokenizer_digest.clone();
        let kept = blocking({
            let (path, pinned) = (path.clone(), pinned.clone());
            move || read_kept(&path, &pinned)
        })
        .await?;
        let was_kept = kept.is_some();
        let bytes = match kept {
            Some(bytes) => bytes,
            None => {
                let bytes = fetch(version, links).await?;
                let actual = digest(&bytes);
                if actual != pinned {
                    return Err(ModelTextError::Digest { pinned, actual });
                }
                bytes
            }
        };
        blocking(move || {
            if !was_kept && let Err(error) = keep(&path, &bytes) {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a model text could not be kept on disk"
                );
            }
            let text = ModelText::from_bytes(&bytes).and_then(TextModel::new);
            text.map(Arc::new).map_err(|error| ModelTextError::Unusable(Arc::new(error)))
        })
        .await?
    }

    /// The digest comes from the config: it must be one before it names a file.
    fn path(&self, pinned: &str) -> Result<PathBuf, ModelTextError> {
        match pinned.strip_prefix("sha256:") {
            Some(hex) if hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                Ok(self.directory.join(hex))
            }
            _ => Err(ModelTextError::Digest { pinned: pinned.to_owned(), actual: "not a digest".into() }),
        }
    }
}

async fn fetch(version: &PinnedVersion, links: &[Arc<Link>]) -> Result<Vec<u8>, ModelTextError> {
    let mut last = ModelTextError::NoWorker;
    for link in links {
        match link.fetch_model_text(version.id.to_string(), MAX_MODEL_TEXT_BYTES).await {
            Ok(bytes) => return Ok(bytes),
            Err(error) => last = ModelTextError::Fetch(error.to_string()),
        }
    }
    Err(last)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ModelTextError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ModelTextError::Build)
}

/// A damaged file is as good as none.
fn read_kept(path: &Path, pinned: &str) -> Option<Vec<u8>> {
    let length = std::fs::metadata(path).ok()?.len();
    if length > MAX_MODEL_TEXT_BYTES as u64 {
        return None;
    }
    std::fs::read(path).ok().filter(|bytes| digest(bytes) == pinned)
}

fn keep(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let staging = path.with_extension("new");
    std::fs::write(&staging, bytes)?;
    std::fs::rename(&staging, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Issuer, snapshot};
    use crate::testing_text::byte_level;

    fn version(tokenizer_digest: &str) -> PinnedVersion {
        let gateway = weir_schemas::ids::GatewayId::from_u128(9);
        snapshot(&Issuer::new(1), gateway, tokenizer_digest).resources.versions.remove(0)
    }

    #[tokio::test]
    async fn a_kept_text_is_used_only_if_it_is_the_pinned_one() {
        let directory = tempfile::tempdir().unwrap();
        let texts = ModelTexts::new(directory.path()).unwrap();
        let bytes = byte_level().to_bytes();
        let pinned = version(&digest(&bytes));
        let path = texts.path(&pinned.tokenizer_digest).unwrap();
        assert!(matches!(texts.get(&pinned, &[]).await, Err(ModelTextError::NoWorker)));
        keep(&path, &bytes[1..]).unwrap();
        assert!(matches!(texts.get(&pinned, &[]).await, Err(ModelTextError::NoWorker)));
        keep(&path, &bytes).unwrap();
        let built = texts.get(&pinned, &[]).await.unwrap();
        assert!(Arc::ptr_eq(&built, &texts.get_built(&pinned).unwrap()));
        texts.retain(&[]);
        assert!(texts.get_built(&pinned).is_none());
    }

    #[tokio::test]
    async fn what_is_no_digest_names_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let texts = ModelTexts::new(directory.path()).unwrap();
        for bad in ["", "sha256:", "sha256:../../../../etc/passwd", &format!("md5:{}", "0".repeat(64))] {
            assert!(
                matches!(texts.get(&version(bad), &[]).await, Err(ModelTextError::Digest { .. })),
                "{bad}"
            );
        }
    }
}
