//! What every list and row has in common: a page by the last id seen, and numbers as Postgres has them.

use std::str::FromStr;

use super::error::StoreError;

/// Which part of a list: what comes after an id, at most so many. Ids are ordered by time.
#[derive(Debug, Clone, Default)]
pub(crate) struct PageRequest {
    /// The last id of the page before.
    pub(crate) after: Option<String>,
    /// Most rows wanted.
    pub(crate) limit: u32,
}

impl PageRequest {
    /// One row more than wanted, which tells whether there are more.
    pub(super) fn rows(&self) -> i64 {
        i64::from(self.limit) + 1
    }
}

/// Postgres has no unsigned integers. Positions, versions and the domain's bounded numbers all fit.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) fn unsigned<T: TryFrom<i64>>(value: i64, what: &'static str) -> Result<T, StoreError> {
    T::try_from(value).map_err(|_| StoreError::Corrupt { what })
}

pub(super) fn id<T: FromStr>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt { what: "id" })
}
