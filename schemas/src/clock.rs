//! The wall clock as an argument: only a `main` (or a test) makes one, everyone else is handed it.

use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};

/// A source of wall-clock time, cheap to clone.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>);

impl Clock {
    /// Wraps a function that tells the time: `Clock::new(chrono::Utc::now)` in `main`, a fixed one in tests.
    pub fn new(now: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The current time, UTC.
    pub fn now(&self) -> DateTime<Utc> {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
