//! A segment file: a checksummed header, then frames. Its whole length is allocated at creation, so that a full disk
//! is met when room is reserved and never when a request is closed.
//!
//! A file of zeros is a spare that was never begun.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::posix_fallocate;

use crate::error::LogError;

const MAGIC: &[u8; 8] = b"WEIRLOG1";
/// Magic, segment id, next sequence, next entry, CRC32, four unused bytes.
pub(crate) const HEADER_BYTES: u64 = 40;
const SUFFIX: &str = ".segment";

/// A segment file that is open for writing and reading.
#[derive(Debug, Clone)]
pub(crate) struct SegmentFile {
    pub(crate) id: u64,
    pub(crate) file: Arc<File>,
    pub(crate) path: Arc<Path>,
}

/// Counters that a new segment carries over, so that they outlive the deletion of all older ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) next_sequence: u64,
    pub(crate) next_entry: u64,
}

impl SegmentFile {
    /// Creates a spare with `capacity_bytes` allocated on disk.
    pub(crate) fn allocate(dir: &Path, id: u64, capacity_bytes: u64) -> Result<Self, LogError> {
        let path = segment_path(dir, id);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|source| not_allocated("create", &path, source))?;
        let allocated = posix_fallocate(&file, 0, i64::try_from(capacity_bytes).unwrap_or(i64::MAX));
        if let Err(errno) = allocated {
            // Best effort: what is left over is a spare, which the next start removes.
            drop(fs::remove_file(&path));
            return Err(not_allocated("allocate", &path, errno.into()));
        }
        Ok(Self { id, file: Arc::new(file), path: path.into() })
    }

    /// Opens an existing one for reading.
    pub(crate) fn open(dir: &Path, id: u64) -> Result<Self, LogError> {
        let path = segment_path(dir, id);
        let file = File::open(&path).map_err(LogError::io("open", &path))?;
        Ok(Self { id, file: Arc::new(file), path: path.into() })
    }

    /// Turns a spare into the active segment.
    pub(crate) fn begin(&self, counters: Counters) -> Result<(), LogError> {
        self.write_at(&header(self.id, counters), 0)
    }

    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        self.file.write_all_at(bytes, offset).map_err(LogError::io("write", &self.path))
    }

    /// Reads up to `limit_bytes` from `offset`; less only at the end of the file.
    pub(crate) fn read_at(&self, offset: u64, limit_bytes: usize) -> Result<Vec<u8>, LogError> {
        let mut bytes = vec![0; limit_bytes];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(LogError::Io { action: "read", path: self.path.to_path_buf(), source });
                }
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    pub(crate) fn sync(&self) -> Result<(), LogError> {
        self.file.sync_data().map_err(LogError::io("sync", &self.path))
    }
}

/// A full disk, or a full quota, is a state to wait out; anything else is a fault.
fn not_allocated(action: &'static str, path: &Path, source: io::Error) -> LogError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            LogError::DiskFull { path: path.to_owned() }
        }
        _ => LogError::Io { action, path: path.to_owned(), source },
    }
}

/// The header's counters; `None` for a spare, [`Err`] with nothing in it for a damaged header.
pub(crate) fn parse_header(id: u64, bytes: &[u8]) -> Result<Option<Counters>, ()> {
    let usable = bytes.get(..40).ok_or(())?;
    if usable.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let number = |at: usize| {
        u64::from_le_bytes(usable[at..at + 8].try_into().expect("eight bytes of a slice of forty"))
    };
    let counters = Counters { next_sequence: number(16), next_entry: number(24) };
    if usable == header(id, counters) { Ok(Some(counters)) } else { Err(()) }
}

fn header(id: u64, counters: Counters) -> [u8; 40] {
    let mut bytes = [0u8; 40];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&id.to_le_bytes());
    bytes[16..24].copy_from_slice(&counters.next_sequence.to_le_bytes());
    bytes[24..32].copy_from_slice(&counters.next_entry.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[..32]);
    bytes[32..36].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

pub(crate) fn segment_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:020}{SUFFIX}"))
}

/// Ids of the segments in `dir`, ascending.
pub(crate) fn list(dir: &Path) -> Result<Vec<u64>, LogError> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(dir).map_err(LogError::io("list", dir))? {
        let name = entry.map_err(LogError::io("list", dir))?.file_name();
        let id: Option<u64> =
            name.to_str().and_then(|name| name.strip_suffix(SUFFIX)).and_then(|id| id.parse().ok());
        ids.extend(id);
    }
    ids.sort_unstable();
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_taken_whole_or_not_at_all() {
        let counters = Counters { next_sequence: 12, next_entry: 34 };
        let bytes = header(5, counters);
        assert_eq!(parse_header(5, &bytes), Ok(Some(counters)));
        assert_eq!(parse_header(6, &bytes), Err(()), "another segment's header");
        assert_eq!(parse_header(5, &[0; 64]), Ok(None), "a spare");
        for cut in 0..bytes.len() {
            assert_eq!(parse_header(5, &bytes[..cut]), Err(()));
            let mut damaged = bytes;
            damaged[cut] ^= 0x10;
            assert_eq!(parse_header(5, &damaged), Err(()));
        }
    }
}
