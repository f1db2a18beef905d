//! The gateway's id, made at its first start and kept beside its record log: it owns the sequence numbers there, and
//! leases are made out to it.

use std::io::{self, ErrorKind};
use std::path::Path;

use weir_schemas::clock::Clock;
use weir_schemas::ids::GatewayId;

/// Reads the id, or makes one.
pub(crate) fn load_or_create(data_dir: &Path, clock: &Clock) -> io::Result<GatewayId> {
    let path = data_dir.join("node_id");
    match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|error| {
            let message = format!("{} holds no gateway id: {error}", path.display());
            io::Error::new(ErrorKind::InvalidData, message)
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let id = GatewayId::new(clock.now());
            let staging = path.with_extension("new");
            std::fs::write(&staging, format!("{id}\n"))?;
            std::fs::rename(&staging, &path)?;
            Ok(id)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_once_and_a_damaged_one_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let clock = Clock::new(|| chrono::DateTime::from_timestamp_millis(1_000).unwrap());
        let id = load_or_create(directory.path(), &clock).unwrap();
        assert_eq!(load_or_create(directory.path(), &clock).unwrap(), id);
        std::fs::write(directory.path().join("node_id"), "wrk_nonsense").unwrap();
        assert!(load_or_create(directory.path(), &clock).is_err());
    }
}
