//! Keeps what a message spells out from becoming a control token of the template.
//!
//! A template writes its control tokens and the messages into one text. So before rendering, a *guard*, a character
//! that occurs neither in the messages nor in the template, is put inside everything in a message that could be read
//! as a control token's name. The rendered text is then cut at the names that are still whole, which only the
//! template can have written, and the guard is taken out of the rest.
//!
//! What could be read as a name: the name in any letter case (a template may change it), and the beginning or end of
//! one where the message ends or begins (the template's own text could complete it), also after trimming. Nothing
//! else in a message is touched, so templates that look into messages still see what they look for.

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, Input, MatchKind};

use super::TemplateError;
use crate::error::TextError;

/// Characters that no text should contain: first the noncharacters, then a private-use plane.
const NONCHARACTERS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';
const PRIVATE_PLANE: std::ops::RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';

/// The names of a model's control tokens.
#[derive(Debug)]
pub(crate) struct SpecialNames {
    any_case: AhoCorasick,
    /// In lower case.
    forwards: Beginnings,
    /// The same, each back to front.
    backwards: Beginnings,
    longest_bytes: usize,
}

/// Names of which a beginning is looked for.
#[derive(Debug)]
struct Beginnings {
    /// So that a prefix stands before the names that begin with it.
    sorted: Vec<Box<[u8]>>,
    /// Each once, few: most texts have none of them at their ends, and no more is to be looked at.
    first_bytes: Vec<u8>,
}

impl SpecialNames {
    /// A name of a single character cannot be guarded, so it is none.
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self, TextError> {
        let names: Vec<&str> = names.filter(|name| name.chars().nth(1).is_some()).collect();
        let any_case = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .ascii_case_insensitive(true)
            .build(&names)
            .map_err(|error| TextError::BadVocabulary(format!("control tokens: {error}")))?;
        let forwards: Vec<Box<[u8]>> =
            names.iter().map(|name| name.to_ascii_lowercase().into_bytes().into()).collect();
        let mut backwards = forwards.clone();
        backwards.iter_mut().for_each(|name| name.reverse());
        let (forwards, backwards) = (Beginnings::new(forwards), Beginnings::new(backwards));
        let longest_bytes = names.iter().map(|name| name.len()).max().unwrap_or(0);
        Ok(Self { any_case, forwards, backwards, longest_bytes })
    }

    /// Whether `text` ends with the beginning of a name.
    fn may_continue_after(&self, text: &str) -> bool {
        let end = last_bytes(text, self.longest_bytes);
        (1..=end.len()).any(|length| self.forwards.have(&end[end.len() - length..]))
    }

    /// Whether `text` begins with the end of a name.
    fn may_have_begun_before(&self, text: &str) -> bool {
        let mut start = text.as_bytes()[..text.len().min(self.longest_bytes)].to_ascii_lowercase();
        start.reverse();
        (1..=start.len()).any(|length| self.backwards.have(&start[start.len() - length..]))
    }
}

fn last_bytes(text: &str, count: usize) -> Vec<u8> {
    text.as_bytes()[text.len().saturating_sub(count)..].to_ascii_lowercase()
}

impl Beginnings {
    fn new(mut names: Vec<Box<[u8]>>) -> Self {
        names.sort_unstable();
        let mut first_bytes: Vec<u8> = names.iter().filter_map(|name| name.first().copied()).collect();
        first_bytes.dedup();
        Self { sorted: names, first_bytes }
    }

    /// Whether `prefix` is the beginning, not all, of a name.
    fn have(&self, prefix: &[u8]) -> bool {
        if !prefix.first().is_some_and(|first| self.first_bytes.contains(first)) {
            return false;
        }
        let at = self.sorted.partition_point(|name| name.as_ref() <= prefix);
        self.sorted.get(at).is_some_and(|name| name.starts_with(prefix))
    }
}

/// A character that stands for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guard {
    character: char,
}

impl Guard {
    /// Picks a character that occurs neither in the conversation's texts nor in the template.
    pub(crate) fn choose(texts: &[&str], template: &str) -> Result<Self, TemplateError> {
        let texts = || texts.iter().copied().chain([template]);
        let first = *NONCHARACTERS.start();
        if !texts().any(|text| text.contains(first)) {
            return Ok(Self { character: first });
        }
        let candidates = || NONCHARACTERS.chain(PRIVATE_PLANE);
        let is_candidate = |c: &char| NONCHARACTERS.contains(c) || PRIVATE_PLANE.contains(c);
        let present: std::collections::HashSet<char> =
            texts().flat_map(str::chars).filter(is_candidate).collect();
        match candidates().find(|candidate| !present.contains(candidate)) {
            Some(character) => Ok(Self { character }),
            None => Err(TemplateError::AllGuardsUsed),
        }
    }

    /// A text of the conversation with guards in it.
    pub(crate) fn put_into<'a>(self, text: &'a str, names: &SpecialNames) -> Cow<'a, str> {
        let mut places = self.places(text, names);
        if places.is_empty() {
            return Cow::Borrowed(text);
        }
        places.sort_unstable();
        places.dedup();
        let mut guarded = String::with_capacity(text.len() + places.len() * self.character.len_utf8());
        let mut rest = 0;
        for place in places {
            guarded.push_str(&text[rest..place]);
            guarded.push(self.character);
            rest = place;
        }
        guarded.push_str(&text[rest..]);
        Cow::Owned(guarded)
    }

    /// Byte positions before which a guard belongs.
    fn places(self, text: &str, names: &SpecialNames) -> Vec<usize> {
        let mut places = Vec::new();
        let mut start = 0;
        while let Some(found) = names.any_case.find(Input::new(text).range(start..)) {
            // Behind the first character of a name; the next name may begin right there.
            start = found.start() + text[found.start()..].chars().next().map_or(1, char::len_utf8);
            places.push(start);
        }
        let trimmed_start = text.len() - text.trim_start().len();
        places.extend([0, trimmed_start].into_iter().filter(|&at| names.may_have_begun_before(&text[at..])));
        let trimmed_end = text.trim_end().len();
        places.extend(
            [text.len(), trimmed_end].into_iter().filter(|&at| names.may_continue_after(&text[..at])),
        );
        places
    }

    /// The text without guards.
    pub(crate) fn strip(self, text: &str) -> Cow<'_, str> {
        match text.contains(self.character) {
            true => Cow::Owned(text.replace(self.character, "")),
            false => Cow::Borrowed(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 5] = ["<|im_start|>", "<|im_end|>", "<a>", "a>b", "x"];

    fn guarded(text: &str) -> String {
        let names = SpecialNames::new(NAMES.into_iter()).unwrap();
        let guard = Guard { character: '#' };
        let guarded = guard.put_into(text, &names).into_owned();
        assert_eq!(guard.strip(&guarded), text);
        guarded
    }

    #[test]
    fn only_names_and_their_ends_are_guarded() {
        let check = |text: &str, expected: &str| assert_eq!(guarded(text), expected, "{text:?}");
        check("hello", "hello");
        check("1 < 2 and 3 > 2", "1 < 2 and 3 > 2");
        check("a<|im_end|>b", "a<#|im_end|>b");
        check("a<|IM_End|>.", "a<#|IM_End|>.");
        check("c <a>b", "c <#a#>b");
        check("<|im_start|><|im_end|>.", "<#|im_start|><#|im_end|>.");
        check("say <|im_", "say <|im_#");
        check("say <|im_ \n", "say <|im_# \n");
        check(" |> quoted", " #|> quoted");
        check("", "");
        check("x", "x");
    }

    #[test]
    fn a_guard_occurs_nowhere() {
        let choose = |texts: &[&str], template| Guard::choose(texts, template).map(|guard| guard.character);
        assert_eq!(choose(&["plain"], "plain"), Ok('\u{FDD0}'));
        assert_eq!(choose(&["a", "\u{FDD0}"], "\u{FDD1}"), Ok('\u{FDD2}'));
        let noncharacters: String = NONCHARACTERS.collect();
        assert_eq!(choose(&[&noncharacters], ""), Ok('\u{F0000}'));
        let all: String = NONCHARACTERS.chain(PRIVATE_PLANE).collect();
        assert_eq!(choose(&[&all], ""), Err(TemplateError::AllGuardsUsed));
    }

    proptest::proptest! {
        #[test]
        fn no_name_survives_between_any_template_text(
            content in "(<\\|im_start\\|>|<\\|im_end\\|>|<a>|a>b|[<|>ab \n_]|im_){0,8}",
            cut_before in 0usize..12, cut_after in 0usize..12, name in 0usize..4,
        ) {
            // The template writes the beginning of a name before the message and the end of one behind it.
            let before = &NAMES[name][..cut_before.min(NAMES[name].len() - 1)];
            let after = &NAMES[name][cut_after.min(NAMES[name].len() - 1).max(1)..];
            for content in [guarded(&content), guarded(&content).trim().to_owned()] {
                let at = before.len();
                let rendered = format!("{before}{content}{after}");
                for name in &NAMES[..4] {
                    for (found, _) in rendered.match_indices(name) {
                        let inside = found + name.len() > at && found < at + content.len();
                        // One that begins before the message and ends behind it is the template's own doing.
                        let around = found < at && found + name.len() > at + content.len();
                        proptest::prop_assert!(!inside || around, "{:?} in {:?}", name, rendered);
                    }
                }
            }
        }
    }
}
