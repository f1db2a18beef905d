//! The last good snapshot on disk, with its digest, so that a node starts while the control plane is away.

use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config_snapshot::ConfigSnapshot;

/// A larger file is not a snapshot of ours: 100,000 tenants with ten keys each take about half of this.
const MAX_SNAPSHOT_BYTES: u64 = 1 << 30;

#[derive(Serialize, Deserialize)]
struct Stored {
    digest: String,
    snapshot: ConfigSnapshot,
}

/// Reads the snapshot; `None` when there is none. A damaged file is an error, to be logged and passed over.
pub(super) fn load(path: &Path) -> io::Result<Option<ConfigSnapshot>> {
    let length = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    if length > MAX_SNAPSHOT_BYTES {
        return Err(damaged("larger than any snapshot"));
    }
    let stored: Stored =
        serde_json::from_slice(&std::fs::read(path)?).map_err(|error| damaged(&error.to_string()))?;
    if stored.snapshot.digest() != stored.digest {
        return Err(damaged("the digest does not match"));
    }
    Ok(Some(stored.snapshot))
}

/// Replaces the file in one rename, so that a crash leaves the old or the new one.
pub(super) fn store(path: &Path, snapshot: &ConfigSnapshot) -> io::Result<()> {
    let stored = Stored { digest: snapshot.digest(), snapshot: snapshot.clone() };
    let staging = path.with_extension("new");
    let mut file = std::fs::File::create(&staging)?;
    file.write_all(&serde_json::to_vec(&stored).map_err(io::Error::other)?)?;
    file.sync_all()?;
    std::fs::rename(&staging, path)
}
