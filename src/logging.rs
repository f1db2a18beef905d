//! Logs: JSON, one event a line, to standard error or to a file; for people where standard error is a terminal.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// A log file is set aside at this size, and the one set aside before is dropped: two of them bound the disk used.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The section `[log]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RawConfig {
    /// Which events: a level, and levels of single modules, as in `info,weir_gateway=debug`.
    pub(crate) filter: String,
    /// Where to; empty: standard error.
    pub(crate) file: PathBuf,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self { filter: "info".to_owned(), file: PathBuf::new() }
    }
}

/// Installs the process's logging.
pub(crate) fn install(config: &RawConfig) -> anyhow::Result<()> {
    let filter = filter(config)?;
    let registry = tracing_subscriber::registry();
    if config.file.as_os_str().is_empty() {
        if io::stderr().is_terminal() {
            registry
                .with(tracing_subscriber::fmt::layer().with_writer(io::stderr).with_filter(filter))
                .try_init()
        } else {
            registry
                .with(tracing_subscriber::fmt::layer().json().with_writer(io::stderr).with_filter(filter))
                .try_init()
        }
    } else {
        let file = RotatingFile::open(&config.file)?;
        registry
            .with(tracing_subscriber::fmt::layer().json().with_writer(file).with_filter(filter))
            .try_init()
    }
    .context("logging was installed twice")
}

/// For `weir up`: everything to the file, errors also to the people in front of it.
pub(crate) fn install_for_up(file: &Path) -> anyhow::Result<()> {
    let config = RawConfig { file: file.to_owned(), ..RawConfig::default() };
    let people = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .with_filter(LevelFilter::ERROR);
    let file = RotatingFile::open(file)?;
    tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().json().with_writer(file).with_filter(filter(&config)?))
        .with(people)
        .try_init()
        .context("logging was installed twice")
}

fn filter(config: &RawConfig) -> anyhow::Result<Targets> {
    config.filter.parse().with_context(|| format!("log.filter '{}' is not a filter", config.filter))
}

/// Appends to a file of bounded size.
#[derive(Debug)]
struct RotatingFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl RotatingFile {
    fn open(path: &Path) -> anyhow::Result<Mutex<Self>> {
        let open = || -> io::Result<Self> {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            let file = append(path)?;
            Ok(Self { path: path.to_owned(), bytes: file.metadata()?.len(), file })
        };
        open().map(Mutex::new).with_context(|| format!("cannot log to {}", path.display()))
    }

    fn rotate(&mut self) -> io::Result<()> {
        std::fs::rename(&self.path, self.path.with_extension("log.old"))?;
        self.file = append(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

impl Write for RotatingFile {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        if self.bytes >= FILE_BYTES_MAX {
            self.rotate()?;
        }
        let written = self.file.write(event)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.log");
        let mut file = RotatingFile::open(&path).unwrap().into_inner().unwrap();
        file.write_all(b"first\n").unwrap();
        file.bytes = FILE_BYTES_MAX;
        file.write_all(b"second\n").unwrap();
        assert_eq!(std::fs::read(directory.path().join("weir.log.old")).unwrap(), b"first\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"second\n");
    }
}
