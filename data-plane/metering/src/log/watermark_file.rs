//! The file that keeps the ledger's watermark: the number and its checksum, as text. Numbering goes on from it, so a number
//! that nobody wrote would leave a gap for ever; one that cannot be believed only means that what the ledger has is sent
//! again.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::error::LogError;

/// Its name. The number in it is older than the truth after a crash, which only means a resend.
pub(super) const FILE: &str = "watermark";

/// What the file holds.
pub(super) fn text(watermark: u64) -> String {
    format!("{watermark} {:08x}\n", crc32fast::hash(watermark.to_string().as_bytes()))
}

/// The watermark; 0 where there is none that can be believed.
pub(super) fn read(dir: &Path) -> Result<u64, LogError> {
    let path = dir.join(FILE);
    let held = match fs::read(&path) {
        Ok(held) => held,
        Err(source) if source.kind() == ErrorKind::NotFound => return Ok(0),
        Err(source) => return Err(LogError::Io { action: "read", path, source }),
    };
    let held = String::from_utf8_lossy(&held);
    let number = held.split_whitespace().next().and_then(|number| number.parse().ok());
    match number.filter(|&number| text(number) == held) {
        Some(watermark) => Ok(watermark),
        None => {
            tracing::warn!(path = %path.display(), "damaged watermark file; the ledger is sent what it has already");
            Ok(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), 0);
        for watermark in [0, 1, 224, u64::MAX] {
            fs::write(dir.path().join(FILE), text(watermark)).unwrap();
            assert_eq!(read(dir.path()).unwrap(), watermark);
        }
        let whole = text(224);
        for damaged in
            ["", "224", "99999999", "99999999\n", "junk", "224 00000000\n", "\u{0}\u{0}", &whole[..8]]
        {
            fs::write(dir.path().join(FILE), damaged).unwrap();
            assert_eq!(read(dir.path()).unwrap(), 0, "{damaged:?}");
        }
        for position in 0..whole.len() {
            let mut damaged = whole.clone().into_bytes();
            damaged[position] ^= 1;
            fs::write(dir.path().join(FILE), damaged).unwrap();
            assert_eq!(read(dir.path()).unwrap(), 0, "a flipped bit at {position}");
        }
    }
}
