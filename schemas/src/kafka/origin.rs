//! Who sent a message and as the how-manieth: two headers, so that the payload stays exactly as the sender's log has
//! it, and so that a payload which no one can read still has a place in its sender's sequence.

use rdkafka::message::{Header, Headers, OwnedHeaders};

/// Header with the sender's id, `gtw_…` or `wrk_…`.
pub const SENDER_HEADER: &str = "weir-sender";
/// Header with the sender's gapless sequence number, in decimal.
pub const SEQUENCE_HEADER: &str = "weir-sequence";
/// An id is 30 characters; a longer one is none.
const SENDER_BYTES_MAX: usize = 64;

/// A message's place in its sender's sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// `gtw_…` or `wrk_…`, not checked further.
    pub sender_id: String,
    /// From 1, gapless for each sender.
    pub sequence: u64,
}

/// Why a message has no known place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// Not sent by Weir.
    #[error("the message has no header {0}")]
    Missing(&'static str),
    /// Two answers are none.
    #[error("the message has the header {0} more than once")]
    Repeated(&'static str),
    /// Not an id, or not a number from 1.
    #[error("the message's header {0} is not of its form")]
    Malformed(&'static str),
}

impl Origin {
    /// The headers of a message.
    pub fn to_headers(sender_id: &str, sequence: u64) -> OwnedHeaders {
        OwnedHeaders::new_with_capacity(2)
            .insert(Header { key: SENDER_HEADER, value: Some(sender_id) })
            .insert(Header { key: SEQUENCE_HEADER, value: Some(&sequence.to_string()) })
    }

    /// Reads a message's headers; others beside ours are ignored.
    pub fn from_headers(headers: Option<&impl Headers>) -> Result<Self, OriginError> {
        let sender_id = only(headers, SENDER_HEADER)?;
        let sequence = only(headers, SEQUENCE_HEADER)?;
        if sender_id.is_empty()
            || sender_id.len() > SENDER_BYTES_MAX
            || !sender_id.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(OriginError::Malformed(SENDER_HEADER));
        }
        // `parse` would accept a sign.
        let digits = sequence.bytes().all(|byte| byte.is_ascii_digit());
        match sequence.parse() {
            Ok(sequence) if sequence > 0 && digits => Ok(Self { sender_id: sender_id.to_owned(), sequence }),
            Ok(_) | Err(_) => Err(OriginError::Malformed(SEQUENCE_HEADER)),
        }
    }
}

/// The text of the one header of this name.
fn only<'a>(headers: Option<&'a impl Headers>, name: &'static str) -> Result<&'a str, OriginError> {
    let mut found = headers.into_iter().flat_map(Headers::iter).filter(|header| header.key == name);
    let header = found.next().ok_or(OriginError::Missing(name))?;
    if found.next().is_some() {
        return Err(OriginError::Repeated(name));
    }
    header.value.and_then(|value| std::str::from_utf8(value).ok()).ok_or(OriginError::Malformed(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &[u8])]) -> OwnedHeaders {
        let start = OwnedHeaders::new();
        pairs.iter().fold(start, |all, &(key, value)| all.insert(Header { key, value: Some(value) }))
    }

    #[test]
    fn what_is_written_is_read() {
        let written = Origin::to_headers("gtw_7", 42).insert(Header { key: "other", value: Some("x") });
        let read = Origin::from_headers(Some(&written)).unwrap();
        assert_eq!(read, Origin { sender_id: "gtw_7".into(), sequence: 42 });
    }

    #[test]
    fn what_has_no_place_says_why() {
        use OriginError::{Malformed, Missing, Repeated};
        assert_eq!(Origin::from_headers(None::<&OwnedHeaders>), Err(Missing(SENDER_HEADER)));
        let check = |pairs: &[(&str, &[u8])], expected| {
            assert_eq!(Origin::from_headers(Some(&headers(pairs))), Err(expected), "{pairs:?}");
        };
        let sender = (SENDER_HEADER, b"gtw_7".as_slice());
        check(&[sender], Missing(SEQUENCE_HEADER));
        check(&[sender, sender, (SEQUENCE_HEADER, b"1")], Repeated(SENDER_HEADER));
        for bad in [b"".as_slice(), b"0", b"-1", b"+1", b"1.0", b"18446744073709551616", b"\xff"] {
            check(&[sender, (SEQUENCE_HEADER, bad)], Malformed(SEQUENCE_HEADER));
        }
        for bad in [b"".as_slice(), b"a b", b"\xff", &[b'a'; 65]] {
            check(&[(SENDER_HEADER, bad), (SEQUENCE_HEADER, b"1")], Malformed(SENDER_HEADER));
        }
    }
}
