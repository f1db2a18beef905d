//! Finds stop strings in a text that arrives in pieces, and lets nothing at or past one through.
//!
//! The match that ends first in the text wins, and of those that end together the longest, so that the outcome does
//! not depend on how the text was cut. What could still become a stop string is held back, and no more than that.
//! Linear time whatever the strings and the text are: one Knuth-Morris-Pratt automaton for each stop string (at most
//! [`StopLimits::max_strings`] of them), each of which takes O(1) amortised for a byte.

use thiserror::Error;

/// What a caller may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopLimits {
    pub max_strings: usize,
    pub max_string_bytes: usize,
}

impl Default for StopLimits {
    /// OpenAI's API allows four; the length bounds what one request holds back.
    fn default() -> Self {
        Self { max_strings: 4, max_string_bytes: 1024 }
    }
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum StopError {
    #[error("{actual} stop strings, at most {limit} are allowed")]
    TooMany { limit: usize, actual: usize },
    #[error("a stop string of {actual} bytes, at most {limit} are allowed")]
    TooLong { limit: usize, actual: usize },
    #[error("an empty stop string")]
    Empty,
}

/// What became of one piece of text.
#[derive(Debug, PartialEq, Eq)]
pub struct StopStep<'a> {
    /// Text that is certainly before any stop string.
    pub emit: &'a str,
    /// A stop string is complete. Nothing follows: later pieces are ignored.
    pub matched: bool,
}

/// The stop strings of one sequence and how far its text is into each of them.
#[derive(Debug)]
pub struct StopMatcher {
    stops: Vec<Progress>,
    /// The end of the text that could still become a stop string.
    held: String,
    emit: String,
    matched: bool,
}

impl StopMatcher {
    /// With OpenAI's limits.
    pub fn new(stops: &[String]) -> Result<Self, StopError> {
        Self::with_limits(stops, StopLimits::default())
    }

    pub fn with_limits(stops: &[String], limits: StopLimits) -> Result<Self, StopError> {
        if stops.len() > limits.max_strings {
            return Err(StopError::TooMany { limit: limits.max_strings, actual: stops.len() });
        }
        for stop in stops {
            match stop.len() {
                0 => return Err(StopError::Empty),
                actual if actual > limits.max_string_bytes => {
                    return Err(StopError::TooLong { limit: limits.max_string_bytes, actual });
                }
                _ => {}
            }
        }
        let stops = stops.iter().map(|stop| Progress::new(stop.as_bytes())).collect();
        Ok(Self { stops, held: String::new(), emit: String::new(), matched: false })
    }

    /// There are no stop strings: every text comes back as it is.
    pub fn is_idle(&self) -> bool {
        self.stops.is_empty()
    }

    /// Takes the next piece of the text.
    #[inline]
    pub fn push<'a>(&'a mut self, text: &'a str) -> StopStep<'a> {
        if self.stops.is_empty() {
            return StopStep { emit: text, matched: false };
        }
        self.emit.clear();
        if self.matched {
            return StopStep { emit: "", matched: true };
        }
        let held_before = self.held.len();
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            let complete = self.stops.iter_mut().filter_map(|stop| stop.advance(byte)).max();
            if let Some(stop_bytes) = complete {
                self.matched = true;
                // A stop string that is complete here began inside what is held or in this piece.
                self.held.push_str(&text[..=at]);
                let end = held_before + at + 1;
                self.emit.push_str(&self.held[..end - stop_bytes]);
                self.held.clear();
                return StopStep { emit: &self.emit, matched: true };
            }
        }
        let hold = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        self.release(text, hold);
        StopStep { emit: &self.emit, matched: false }
    }

    /// Emits all but the last `hold` bytes of what was held and `text`.
    fn release(&mut self, text: &str, hold: usize) {
        if hold <= text.len() {
            let (now, later) = text.split_at(text.len() - hold);
            self.emit.push_str(&self.held);
            self.emit.push_str(now);
            self.held.clear();
            self.held.push_str(later);
        } else {
            let now = self.held.len() + text.len() - hold;
            self.emit.push_str(&self.held[..now]);
            self.held.drain(..now);
            self.held.push_str(text);
        }
    }

    /// The end of the text: what was held back is no stop string after all. Empty after a match.
    pub fn finish(&mut self) -> &str {
        self.emit.clear();
        std::mem::swap(&mut self.emit, &mut self.held);
        &self.emit
    }
}

/// Knuth, Morris & Pratt (1977) for one stop string.
#[derive(Debug)]
struct Progress {
    stop: Box<[u8]>,
    /// Length of the longest proper border of each prefix of `stop`.
    borders: Box<[usize]>,
    /// The longest prefix of `stop` that the text ends with.
    matched: usize,
}

impl Progress {
    fn new(stop: &[u8]) -> Self {
        let mut borders = vec![0; stop.len() + 1];
        let mut border = 0;
        for at in 1..stop.len() {
            while border > 0 && stop[at] != stop[border] {
                border = borders[border];
            }
            border += usize::from(stop[at] == stop[border]);
            borders[at + 1] = border;
        }
        Self { stop: stop.into(), borders: borders.into(), matched: 0 }
    }

    /// The stop string's length if this byte completes it.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        while self.matched > 0 && byte != self.stop[self.matched] {
            self.matched = self.borders[self.matched];
        }
        self.matched += usize::from(byte == self.stop[self.matched]);
        (self.matched == self.stop.len()).then_some(self.matched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(&stops.iter().map(|&stop| stop.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut matcher = matcher(stops);
        let mut deltas: Vec<String> =
            pieces.iter().map(|piece| matcher.push(piece).emit.to_owned()).collect();
        deltas.push(matcher.finish().to_owned());
        (deltas, matcher.matched)
    }

    #[test]
    fn table() {
        let check = |stops: &[&str], pieces: &[&str], deltas: &[&str], matched| {
            assert_eq!(
                run(stops, pieces),
                (deltas.iter().map(|&d| d.to_owned()).collect(), matched),
                "{stops:?} {pieces:?}"
            );
        };
        check(&[], &["ab", "c"], &["ab", "c", ""], false);
        check(&["END"], &["abEN", "Dxyz", "more"], &["ab", "", "", ""], true);
        check(&["END"], &["abEN", "d", "E"], &["ab", "ENd", "", "E"], false);
        check(&["END"], &["ENEND"], &["EN", ""], true);
        check(&["abab"], &["aba", "cabab"], &["", "abac", ""], true);
        check(&["aab"], &["a", "a", "a", "b"], &["", "", "a", "", ""], true);
        check(&["x", "ab"], &["zab x"], &["z", ""], true);
        check(&["abcdef", "cd"], &["abcdef"], &["ab", ""], true);
        check(&["bc", "abc"], &["zabc"], &["z", ""], true);
        check(&["\n\n"], &["a\n", "b\n", "\nc"], &["a", "\nb", "", ""], true);
        check(&["中文"], &["你中", "国中文"], &["你", "中国", ""], true);
        check(&["é"], &["cafés"], &["caf", ""], true);
        check(&["👍🏽"], &["👍", "👍", "🏽x"], &["", "👍", "", ""], true);
    }

    #[test]
    fn limits() {
        let new = |stops: &[&str]| {
            StopMatcher::new(&stops.iter().map(|&s| s.to_owned()).collect::<Vec<_>>()).map(drop)
        };
        assert_eq!(new(&["a", "b", "c", "d"]), Ok(()));
        assert_eq!(new(&["a"; 5]), Err(StopError::TooMany { limit: 4, actual: 5 }));
        assert_eq!(new(&["a", ""]), Err(StopError::Empty));
        assert_eq!(new(&[&"a".repeat(1025)]), Err(StopError::TooLong { limit: 1024, actual: 1025 }));
    }

    /// The text before the first stop string to end, by trying every prefix.
    fn naive<'a>(text: &'a str, stops: &[String]) -> (&'a str, bool) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            if let Some(longest) =
                stops.iter().filter(|&stop| text[..end].ends_with(stop)).map(String::len).max()
            {
                return (&text[..end - longest], true);
            }
        }
        (text, false)
    }

    proptest::proptest! {
        #[test]
        fn equals_the_naive_reading_and_holds_back_no_more_than_it_must(
            stops in proptest::collection::vec("[abé]{1,5}", 0..4),
            pieces in proptest::collection::vec("[abcé]{0,5}", 0..12),
        ) {
            let mut matcher = StopMatcher::new(&stops).unwrap();
            let (mut emitted, mut seen) = (String::new(), String::new());
            for piece in &pieces {
                seen += piece;
                let matched = { let step = matcher.push(piece); emitted += step.emit; step.matched };
                let (expected, stopped) = naive(&seen, &stops);
                proptest::prop_assert_eq!(matched, stopped);
                if stopped {
                    proptest::prop_assert_eq!(&emitted, expected);
                } else {
                    let hold = stops.iter().flat_map(|stop| (0..stop.len()).map(move |n| (stop, n)))
                        .filter(|(stop, n)| stop.is_char_boundary(*n) && seen.ends_with(&stop[..*n])).map(|(_, n)| n).max().unwrap_or(0);
                    proptest::prop_assert_eq!(&emitted, &seen[..seen.len() - hold]);
                }
            }
            emitted += matcher.finish();
            proptest::prop_assert_eq!(emitted.as_str(), naive(&seen, &stops).0);
        }
    }
}
