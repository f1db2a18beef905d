//! What a client knows of its own request when it is over.

use std::time::Duration;

/// One request as its client saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    /// Its `metadata.request_id`, by which its charge is found.
    pub id: String,
    /// Who asked.
    pub tenant: String,
    /// How it went.
    pub outcome: Outcome,
    /// From its sending to its end.
    pub took: Duration,
    /// From its sending to the first byte of its body, where there was one.
    pub first_byte: Option<Duration>,
    /// The fastest second of a stream, in pieces of text; a piece is at least a token.
    pub peak_pieces_a_second: u64,
    /// Pieces of text that arrived.
    pub pieces: u64,
}

/// How a request ended for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It saw the end, and was told these tokens.
    Completed(Tokens),
    /// It was refused with this status; nothing may be charged.
    Refused(u16),
    /// It went away by its own will.
    Left,
    /// The stream told of a fault and ended in order.
    Fault,
    /// The connection broke, or there was none.
    Broken,
}

/// What a client is told of its usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the API's own words")]
pub struct Tokens {
    pub prompt: i64,
    pub cached: i64,
    pub generated: i64,
}
