//! `.weir`: everything that an installation made by `weir up` keeps, readable by its owner only.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};

/// Random bytes of a made secret; it is written as twice as many hex digits.
const SECRET_BYTES: usize = 32;

/// Where an installation lives.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    root: PathBuf,
}

impl StateDir {
    /// `.weir` of the current folder, whether or not it exists.
    pub(crate) fn here() -> anyhow::Result<Self> {
        let here = std::env::current_dir().context("the current folder is gone")?;
        Ok(Self { root: here.join(".weir") })
    }

    /// Whether something was installed here.
    pub(crate) fn exists(&self) -> bool {
        self.root.is_dir()
    }

    /// Makes the folder, and takes away what others could read.
    pub(crate) fn create(&self) -> anyhow::Result<()> {
        let create = || {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
            std::fs::set_permissions(&self.root, Permissions::from_mode(0o700))
        };
        create().with_context(|| format!("cannot make {}", self.root.display()))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Tells this checkout from others on the same machine, in places that all of them share.
    pub(crate) fn tag(&self) -> String {
        let digest = Sha256::digest(self.root.as_os_str().as_encoded_bytes());
        hex::encode(&digest[..6])
    }

    /// The secret in this file; made if there is none.
    pub(crate) fn secret_file(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        if !path.exists() {
            let mut secret = [0; SECRET_BYTES];
            getrandom::fill(&mut secret)
                .map_err(|error| anyhow::anyhow!("the system gives no randomness: {error}"))?;
            write_private(&path, hex::encode(secret).as_bytes())?;
        }
        Ok(path)
    }
}

/// Replaces a file in one rename; only its owner can read it, from the first byte on.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let staging = path.with_extension("new");
    let write = || -> io::Result<()> {
        // A leftover with wider permissions must not be reused.
        match std::fs::remove_file(&staging) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&staging)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&staging, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_made_once_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir { root: folder.path().join(".weir") };
        state.create().unwrap();
        let path = state.secret_file("internal_secret").unwrap();
        let secret = std::fs::read_to_string(&path).unwrap();
        assert_eq!(secret.len(), 64);
        assert_eq!(state.secret_file("internal_secret").unwrap(), path);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), secret);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&state.root)), (0o600, 0o700));
    }
}
