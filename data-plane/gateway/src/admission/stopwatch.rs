//! Monotonic time as an argument.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::HISTORY_WINDOW;

/// Time since [`HISTORY_WINDOW`] before the process began. A function and not a number, because a reservation is ended
/// wherever it is dropped, and time counts there too.
#[derive(Clone)]
pub(crate) struct Stopwatch(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Stopwatch {
    /// Of a process that began at `start`.
    pub(crate) fn since(start: Instant) -> Self {
        Self::new(move || HISTORY_WINDOW + start.elapsed())
    }

    pub(crate) fn new(elapsed: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(elapsed))
    }

    pub(crate) fn elapsed(&self) -> Duration {
        (self.0)()
    }
}

impl fmt::Debug for Stopwatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopwatch")
    }
}
