//! Where Postgres' programs are. Debian keeps them off the search path, one folder a major version.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

const DEBIAN: &str = "/usr/lib/postgresql";

#[derive(Debug)]
pub(super) struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// The version that the data folder was made with; the newest for a new one.
    pub(super) fn find(data: &Path) -> anyhow::Result<Self> {
        let wanted = match std::fs::read_to_string(data.join("PG_VERSION")) {
            Ok(version) => Some(version.trim().to_owned()),
            Err(_) => None,
        };
        let mut versions: Vec<u32> = std::fs::read_dir(DEBIAN)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|version| folder(*version).join("initdb").exists())
            .collect();
        versions.sort_unstable();
        let found = match &wanted {
            Some(wanted) => versions.iter().find(|version| version.to_string() == *wanted),
            None => versions.last(),
        };
        match (found, wanted) {
            (Some(&version), _) => Ok(Self { folder: folder(version) }),
            (None, Some(wanted)) if !versions.is_empty() => {
                bail!(
                    "the data was made with Postgres {wanted}, which is not installed (postgresql-{wanted})"
                )
            }
            (None, _) => Self::on_search_path(),
        }
    }

    pub(super) fn path(&self, program: &str) -> PathBuf {
        self.folder.join(program)
    }

    fn on_search_path() -> anyhow::Result<Self> {
        let output = Command::new("pg_config").arg("--bindir").output();
        let output = output.context("Postgres is not installed; run deploy/setup/install.sh")?;
        Ok(Self { folder: PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()) })
    }
}

fn folder(version: u32) -> PathBuf {
    Path::new(DEBIAN).join(version.to_string()).join("bin")
}
