//! A node's id, made at its first start and kept beside its record log: it owns the sequence numbers there, and a
//! gateway's leases are made out to it.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::str::FromStr;

use chrono::{DateTime, Utc};

use crate::clock::Clock;
use crate::ids::IdError;

/// Reads the id in `data_dir`, or makes one with `make` (`GatewayId::new`, `WorkerId::new`). A damaged one is an error:
/// another id would leave this node's unsent records without their owner.
pub fn load_or_create<Id>(data_dir: &Path, clock: &Clock, make: fn(DateTime<Utc>) -> Id) -> io::Result<Id>
where
    Id: FromStr<Err = IdError> + Display,
{
    let path = data_dir.join("node_id");
    match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|error| {
            let message = format!("{} holds no usable id: {error}", path.display());
            io::Error::new(ErrorKind::InvalidData, message)
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let id = make(clock.now());
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
    use crate::ids::{GatewayId, WorkerId};

    #[test]
    fn it_is_made_once_and_a_damaged_one_or_one_of_another_kind_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let clock = Clock::new(|| DateTime::from_timestamp_millis(1_000).unwrap());
        let id = load_or_create(directory.path(), &clock, GatewayId::new).unwrap();
        assert_eq!(load_or_create(directory.path(), &clock, GatewayId::new).unwrap(), id);
        assert!(load_or_create(directory.path(), &clock, WorkerId::new).is_err());
        std::fs::write(directory.path().join("node_id"), "gtw_nonsense").unwrap();
        assert!(load_or_create(directory.path(), &clock, GatewayId::new).is_err());
    }
}
