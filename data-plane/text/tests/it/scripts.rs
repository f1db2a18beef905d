//! Text of many scripts, for tests of what must not depend on how a text is cut.

use proptest::prelude::*;

/// How many kinds [`run_of_text`] chooses from, evenly.
pub(crate) const KINDS: u32 = 5;

/// Latin, Han, Hangul (composed and not), emoji with joiners and combining marks, or whitespace.
pub(crate) fn run_of_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Zéüß ,.!?']{1,12}",
        "[一-龥。，]{1,6}",
        "[가-힣ᄀ-하-ᅵ]{1,6}",
        prop::sample::select(vec!["👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "e\u{301}\u{302}"]).prop_map(str::to_owned),
        "[ \n\t]{1,5}",
    ]
}
