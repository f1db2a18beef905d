//! The three classes of characters that pre-tokenizers' expressions name: `\p{L}`, `\p{N}` and `\s`.
//!
//! They are those of Unicode 16, as the reference implementation has them. That is held by a test, for a newer Unicode
//! would turn characters that no model has seen into letters, and the tokens around them into others.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CharClass {
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
    /// `[^\s\p{L}\p{N}]`
    Other,
}

/// The Basic Multilingual Plane, looked up instead of searched (64 KiB), and the stretches beyond it.
struct Classes {
    basic_plane: Vec<CharClass>,
    /// In ascending order, of letters and numbers only.
    beyond: Vec<(char, char, CharClass)>,
}

static CLASSES: LazyLock<Classes> = LazyLock::new(|| {
    let mut ranges = Vec::new();
    for (expression, class) in
        [(r"\p{L}", CharClass::Letter), (r"\p{N}", CharClass::Number), (r"\s", CharClass::Space)]
    {
        let parsed = regex_syntax::parse(expression).expect("a constant expression");
        if let HirKind::Class(Class::Unicode(set)) = parsed.kind() {
            ranges.extend(set.ranges().iter().map(|range| (range.start(), range.end(), class)));
        }
    }
    ranges.sort_unstable_by_key(|range| range.0);
    let mut basic_plane = vec![CharClass::Other; 0x1_0000];
    for &(start, end, class) in ranges.iter().filter(|range| range.0 <= '\u{FFFF}') {
        basic_plane[start as usize..=(end as usize).min(0xFFFF)].fill(class);
    }
    ranges.retain(|range| range.1 > '\u{FFFF}');
    Classes { basic_plane, beyond: ranges }
});

pub(crate) fn classify(character: char) -> CharClass {
    match character {
        'a'..='z' | 'A'..='Z' => CharClass::Letter,
        ' ' | '\t'..='\r' => CharClass::Space,
        '0'..='9' => CharClass::Number,
        '\0'..='\x7F' => CharClass::Other,
        '\u{80}'..='\u{FFFF}' => CLASSES.basic_plane[character as usize],
        _ => beyond_basic_plane(character),
    }
}

fn beyond_basic_plane(character: char) -> CharClass {
    let ranges = &CLASSES.beyond;
    let after = ranges.partition_point(|range| range.0 <= character);
    match after.checked_sub(1).map(|at| ranges[at]) {
        Some((_, end, class)) if character <= end => class,
        _ => CharClass::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        let check = |class, characters: &str| {
            for character in characters.chars() {
                assert_eq!(classify(character), class, "{character:?}");
            }
        };
        check(CharClass::Letter, "azAZéßЯאاअ中가ªʰ𝔘𠮷\u{323AF}");
        check(CharClass::Number, "09²½٣Ⅷ①𝟘\u{1FBF9}");
        check(CharClass::Space, " \t\n\x0b\x0c\r\u{85}\u{a0}\u{2003}\u{2028}\u{3000}");
        check(CharClass::Other, "!'_\0\x7f\x1f\u{301}\u{200b}\u{200d}\u{180e}\u{feff}😀\u{10FFFF}");
    }

    #[test]
    fn ascii_shortcuts_say_what_the_table_says() {
        for character in '\0'..='\x7F' {
            assert_eq!(classify(character), CLASSES.basic_plane[character as usize], "{character:?}");
        }
    }

    /// Letters that came with Unicode 16 are letters, those that came later are not.
    #[test]
    fn the_version_is_unicode_16() {
        assert_eq!(classify('\u{1C89}'), CharClass::Letter);
        assert_eq!(classify('\u{10D50}'), CharClass::Letter);
        assert_eq!(classify('\u{088F}'), CharClass::Other);
        assert_eq!(classify('\u{0558}'), CharClass::Other);
    }
}
