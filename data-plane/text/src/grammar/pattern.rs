//! What a schema's patterns mean where engines for regular expressions do not agree: white space.
//!
//! ECMA-262, Python's `re`, Rust's `regex` and JSON Schema validators each take other characters for `\s` (the byte order mark,
//! next line, the ideographic space, the separators below the space). An answer keeps to what all of them take: where
//! white space is wanted it is ASCII's, and where it is not wanted it is none of any.

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, ClassPerl, ClassPerlKind, ClassSet, ClassSetItem};

/// Taken for white space by all.
const NARROW: &str = r"\t-\r\x20";
/// Taken for white space by some.
const WIDE: &str =
    r"\t-\r\x1C-\x20\x85\xA0\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}";

/// A pattern that matches no string which the pattern does not match to every engine's mind, as far as white space goes.
/// One that cannot be read stays as it is.
pub(super) fn agreed(pattern: &str) -> String {
    let Ok(ast) = Parser::new().parse(pattern) else { return pattern.to_owned() };
    let mut classes = Vec::new();
    in_expression(&ast, &mut classes);
    classes.sort_by_key(|(class, _)| class.span.start.offset);
    let mut agreed = String::new();
    let mut end = 0;
    for (class, is_wanted) in classes {
        let members = if class.negated == is_wanted { WIDE } else { NARROW };
        agreed.push_str(&pattern[end..class.span.start.offset]);
        agreed.push_str(if class.negated { "[^" } else { "[" });
        agreed.push_str(members);
        agreed.push(']');
        end = class.span.end.offset;
    }
    agreed + &pattern[end..]
}

/// Finds classes of white space, and whether what is in them is wanted or, within an odd number of `[^…]`, is not.
fn in_expression<'a>(ast: &'a Ast, classes: &mut Vec<(&'a ClassPerl, bool)>) {
    match ast {
        Ast::ClassPerl(class) if class.kind == ClassPerlKind::Space => classes.push((class, true)),
        Ast::ClassBracketed(class) => in_set(&class.kind, !class.negated, classes),
        Ast::Repetition(repetition) => in_expression(&repetition.ast, classes),
        Ast::Group(group) => in_expression(&group.ast, classes),
        Ast::Alternation(any) => any.asts.iter().for_each(|ast| in_expression(ast, classes)),
        Ast::Concat(all) => all.asts.iter().for_each(|ast| in_expression(ast, classes)),
        Ast::Empty(_)
        | Ast::Flags(_)
        | Ast::Literal(_)
        | Ast::Dot(_)
        | Ast::Assertion(_)
        | Ast::ClassUnicode(_)
        | Ast::ClassPerl(_) => {}
    }
}

fn in_set<'a>(set: &'a ClassSet, is_wanted: bool, classes: &mut Vec<(&'a ClassPerl, bool)>) {
    // Operators on sets are none of ECMA-262's.
    if let ClassSet::Item(item) = set {
        in_item(item, is_wanted, classes);
    }
}

fn in_item<'a>(item: &'a ClassSetItem, is_wanted: bool, classes: &mut Vec<(&'a ClassPerl, bool)>) {
    match item {
        ClassSetItem::Perl(class) if class.kind == ClassPerlKind::Space => classes.push((class, is_wanted)),
        ClassSetItem::Bracketed(class) => in_set(&class.kind, is_wanted != class.negated, classes),
        ClassSetItem::Union(union) => union.items.iter().for_each(|item| in_item(item, is_wanted, classes)),
        ClassSetItem::Empty(_)
        | ClassSetItem::Literal(_)
        | ClassSetItem::Range(_)
        | ClassSetItem::Ascii(_)
        | ClassSetItem::Unicode(_)
        | ClassSetItem::Perl(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, expected: &str) {
        let expected = expected.replace("NARROW", NARROW).replace("WIDE", WIDE);
        assert_eq!(agreed(pattern), expected);
    }

    #[test]
    fn white_space_is_what_all_agree_on() {
        check(r"^a\s*b$", "^a[NARROW]*b$");
        check(r"^(\S+\s+){0,9}\S$", r"^([^WIDE]+[NARROW]+){0,9}[^WIDE]$");
        check(r"^[\w\s-]+$", r"^[\w[NARROW]-]+$");
        check(r"[^\s@]+@[^\S]", "[^[WIDE]@]+@[^[^NARROW]]");
        check(r"é\\s\d[a-z]", r"é\\s\d[a-z]");
        check(r"(?=\s)", r"(?=\s)");
    }
}
