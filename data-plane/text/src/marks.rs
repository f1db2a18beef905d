//! Finds a mark in a text that arrives in pieces.

/// What a text holds of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// It begins at this byte.
    At(usize),
    /// It does not occur. What begins at this byte, which is the end if nothing does, may still become it.
    NotYet(usize),
}

/// The first occurrence of `mark`, which is not empty and ASCII. Linear: a mark's first byte occurs in it only once
/// (all of ours begin with the bracket that their last byte closes), so its beginnings do not overlap.
pub(crate) fn find(text: &str, mark: &str) -> Found {
    if let Some(at) = text.find(mark) {
        return Found::At(at);
    }
    let tail = text.len().saturating_sub(mark.len() - 1);
    let first = mark.as_bytes()[0];
    let begins =
        |at: &usize| text.as_bytes()[*at] == first && mark.as_bytes().starts_with(&text.as_bytes()[*at..]);
    Found::NotYet((tail..text.len()).find(begins).unwrap_or(text.len()))
}

/// Whether `text` is a beginning of `mark`, or the other way round.
pub(crate) fn may_begin_with(text: &str, mark: &str) -> bool {
    let length = text.len().min(mark.len());
    text.as_bytes()[..length] == mark.as_bytes()[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_and_their_beginnings_held() {
        let check = |text: &str, found: Found| assert_eq!(find(text, "<think>"), found, "{text:?}");
        check("", Found::NotYet(0));
        check("a < b", Found::NotYet(5));
        check("中<", Found::NotYet(3));
        check("a<thin", Found::NotYet(1));
        check("a<thing", Found::NotYet(7));
        check("<<think>", Found::At(1));
        check("<thi<think", Found::NotYet(4));
        check("é<think>b<think>", Found::At(2));
    }
}
