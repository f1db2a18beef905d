//! Records on their way into Postgres' json type.

use std::borrow::Cow;

/// A record as Postgres' json type can read it back: that has no NUL, not even an escaped one.
pub(crate) fn storable(payload: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(payload);
    if !text.contains("\\u0000") {
        return text;
    }
    let mut stored = String::with_capacity(text.len());
    let mut rest = text.as_ref();
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        stored.push_str(before);
        let length = escape.chars().take(2).map(char::len_utf8).sum();
        if let Some(after) = escape.strip_prefix("\\u0000") {
            stored.push_str("\\ufffd");
            rest = after;
        } else {
            stored.push_str(&escape[..length]);
            rest = &escape[length..];
        }
    }
    stored.push_str(rest);
    Cow::Owned(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_nul_is_replaced_and_nothing_else() {
        let check = |payload: &str, expected: &str| assert_eq!(storable(payload.as_bytes()), expected);
        check(r#"{"a":"b"}"#, r#"{"a":"b"}"#);
        check(r#"{"a":"x\u0000y"}"#, r#"{"a":"x\ufffdy"}"#);
        check(r#"{"a":"x\\u0000"}"#, r#"{"a":"x\\u0000"}"#);
        check(r#"{"a":"\n\\\u0000é\u0000"}"#, r#"{"a":"\n\\\ufffdé\ufffd"}"#);
        check("\\u0000\\", "\\ufffd\\");
    }
}
