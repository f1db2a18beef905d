//! `strftime_now`, for templates that write the date. The time is given by the caller; nothing here reads a clock.

use std::fmt::Write;
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use minijinja::{Error, ErrorKind, Value};

const MAX_FORMAT_BYTES: usize = 256;

/// The function, with its time in it, in UTC.
pub(super) fn strftime_now(now: SystemTime) -> Value {
    let now = DateTime::<Utc>::from(now);
    Value::from_function(move |format: &str| {
        let mut text = String::new();
        // An unknown directive is an error of `Display`.
        match format.len() <= MAX_FORMAT_BYTES && write!(text, "{}", now.format(format)).is_ok() {
            true => Ok(text),
            false => Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: bad format")),
        }
    })
}
