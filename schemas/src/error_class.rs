//! The closed set of ways an operation can fail, as seen by whoever called. Each edge renders it exhaustively
//! (no `_` arm): the control plane as problem+json, the gateway as OpenAI's error object.

/// Whose fault it was and what the caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The request is malformed or cannot be met as stated; do not retry unchanged.
    Invalid,
    /// No or bad credentials.
    Unauthenticated,
    /// Known caller, insufficient scope.
    Forbidden,
    /// Absent, or not the caller's to see.
    NotFound,
    /// The resource changed or exists; re-read, then decide.
    Conflict,
    /// The caller's own limit; retry later.
    RateLimited,
    /// The platform is full; retry later.
    Capacity,
    /// A dependency is away; retry later.
    Unavailable,
    /// The stated deadline passed.
    Deadline,
    /// The caller went away.
    Cancelled,
    /// A bug or a broken part; the operator must look.
    Internal,
}
