//! The checks that several components' configuration sections share. The section's name is added by who reports it.

use std::path::{Path, PathBuf};

use tonic::codegen::http::Uri;

/// A wrong value is quoted up to this length.
const MAX_ECHO_CHARS: usize = 128;

/// A value that a section refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// A number outside its range.
    #[error("{key} is {actual}, allowed is {min} to {max}")]
    OutOfRange {
        /// Which key.
        key: &'static str,
        /// Its value.
        actual: u64,
        /// Least allowed.
        min: u64,
        /// Most allowed.
        max: u64,
    },
    /// An address that is none.
    #[error("{key} must be of the form http://host:port, not '{actual}'")]
    Address {
        /// Which key.
        key: &'static str,
        /// Its value, shortened.
        actual: String,
    },
}

/// No database to connect to. What was given may hold a password, so it is not shown.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseUrlError {
    /// The file that holds it cannot be read.
    #[error("database_url is empty and database_url_file ({path}) cannot be read", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// Not a Postgres URL.
    #[error("the database URL is not of the form postgres://…")]
    Form,
}

/// The database's URL: `url`, or where that is empty what stands in `file`.
pub fn database_url(url: &str, file: &Path) -> Result<String, DatabaseUrlError> {
    let url = match url.is_empty() {
        false => url.to_owned(),
        true => std::fs::read_to_string(file)
            .map_err(|source| DatabaseUrlError::File { path: file.to_owned(), source })?,
    };
    let url = url.trim();
    match url.starts_with("postgres://") || url.starts_with("postgresql://") {
        true => Ok(url.to_owned()),
        false => Err(DatabaseUrlError::Form),
    }
}

/// Whether a number is within its range, ends included.
pub fn in_range(key: &'static str, actual: u64, min: u64, max: u64) -> Result<(), SettingError> {
    match (min..=max).contains(&actual) {
        true => Ok(()),
        false => Err(SettingError::OutOfRange { key, actual, min, max }),
    }
}

/// Whether this is the address of an internal RPC listener: `http://host:port`.
pub fn http_address(key: &'static str, address: &str) -> Result<(), SettingError> {
    match address.parse::<Uri>() {
        Ok(uri) if uri.scheme_str() == Some("http") && uri.authority().is_some() => Ok(()),
        _ => Err(SettingError::Address { key, actual: address.chars().take(MAX_ECHO_CHARS).collect() }),
    }
}

/// What a node is told to call itself; `None` where it is left to its listener's own address.
pub fn advertised(key: &'static str, address: String) -> Result<Option<String>, SettingError> {
    if address.is_empty() {
        return Ok(None);
    }
    http_address(key, &address).map(|()| Some(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_s_url_is_given_or_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "postgresql:///of-file\n").unwrap();
        assert_eq!(database_url("postgres:///given", "/nowhere".as_ref()).unwrap(), "postgres:///given");
        assert_eq!(database_url("", file.path()).unwrap(), "postgresql:///of-file");
        assert!(matches!(database_url("", "/nowhere".as_ref()), Err(DatabaseUrlError::File { .. })));
        assert!(matches!(database_url("mysql://host/db", file.path()), Err(DatabaseUrlError::Form)));
    }

    #[test]
    fn ranges_and_addresses() {
        assert_eq!(in_range("a", 1, 1, 2), Ok(()));
        assert_eq!(in_range("a", 2, 1, 2), Ok(()));
        assert_eq!(in_range("a", 3, 1, 2).unwrap_err().to_string(), "a is 3, allowed is 1 to 2");
        for (address, good) in [
            ("http://127.0.0.1:7102", true),
            ("http://ledger.internal:7103", true),
            ("https://127.0.0.1:7102", false),
            ("127.0.0.1:7102", false),
            ("", false),
        ] {
            assert_eq!(http_address("x", address).is_ok(), good, "{address}");
        }
        assert_eq!(advertised("x", String::new()), Ok(None));
        assert_eq!(advertised("x", "http://a:1".into()), Ok(Some("http://a:1".into())));
        let long = advertised("x", "y".repeat(1_000)).unwrap_err();
        assert!(long.to_string().len() < 200);
    }
}
