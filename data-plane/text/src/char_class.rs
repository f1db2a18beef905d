//! The three classes of characters that pre-tokenizers' expressions name: `\p{L}`, `\p{N}` and `\s`.

use std::sync::LazyLock;

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

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

/// The Basic Multilingual Plane, looked up instead of searched: 64 KiB.
static BASIC_PLANE: LazyLock<Vec<CharClass>> = LazyLock::new(|| {
    // Surrogates are no characters; their entries are never read.
    (0..=0xFFFF).map(|code| char::from_u32(code).map_or(CharClass::Other, look_up)).collect()
});

pub(crate) fn classify(character: char) -> CharClass {
    match character {
        'a'..='z' | 'A'..='Z' => CharClass::Letter,
        ' ' | '\t'..='\r' => CharClass::Space,
        '0'..='9' => CharClass::Number,
        '\0'..='\x7F' => CharClass::Other,
        '\u{80}'..='\u{FFFF}' => BASIC_PLANE[character as usize],
        _ => look_up(character),
    }
}

fn look_up(character: char) -> CharClass {
    if character.is_whitespace() {
        return CharClass::Space;
    }
    match character.general_category_group() {
        GeneralCategoryGroup::Letter => CharClass::Letter,
        GeneralCategoryGroup::Number => CharClass::Number,
        GeneralCategoryGroup::Mark
        | GeneralCategoryGroup::Punctuation
        | GeneralCategoryGroup::Symbol
        | GeneralCategoryGroup::Separator
        | GeneralCategoryGroup::Other => CharClass::Other,
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
                assert_eq!(look_up(character), class, "{character:?}");
            }
        };
        check(CharClass::Letter, "azAZéßЯאاअ中가ªʰ𝔘");
        check(CharClass::Number, "09²½٣Ⅷ①𝟘");
        check(CharClass::Space, " \t\n\x0b\x0c\r\u{85}\u{a0}\u{2003}\u{2028}\u{3000}");
        check(CharClass::Other, "!'_\0\x7f\x1f\u{301}\u{200b}\u{200d}\u{180e}\u{feff}😀");
    }
}
