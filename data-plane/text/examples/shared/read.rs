//! Reads an answer so that a validator can hold it to its schema.

use serde_json::Value;

/// The value of a JSON text, but for two kinds of numbers that `serde_json` cannot hold: of an exponent only two digits are
/// left, since no double is as large, and `-0` is `0`, which it would read as a double and draft 4 take for no integer.
pub(crate) fn read(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(&held(text))
}

fn held(text: &str) -> String {
    let mut kept = String::new();
    let mut is_string = false;
    let mut num_digits = None;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if is_string {
            kept.push(character);
            match character {
                '\\' => kept.extend(characters.next()),
                '"' => is_string = false,
                _ => {}
            }
            continue;
        }
        is_string = character == '"';
        num_digits = match (character, num_digits) {
            ('e' | 'E', None) if kept.ends_with(|before: char| before.is_ascii_digit()) => Some(0),
            ('+' | '-', Some(0)) => Some(0),
            ('0'..='9', Some(digits)) => Some(digits + 1),
            _ => None,
        };
        if num_digits.is_none_or(|digits| digits <= 2) {
            kept.push(character);
        }
        let is_number_behind = |next: &char| matches!(next, '.' | 'e' | 'E');
        if kept.ends_with("-0") && num_digits.is_none() && !characters.peek().is_some_and(is_number_behind) {
            kept.truncate(kept.len() - 2);
            kept.push('0');
        }
    }
    kept
}
