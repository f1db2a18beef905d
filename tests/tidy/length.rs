//! Files and functions that a person can hold in the head.

use std::collections::BTreeMap;
use std::path::Path;

use crate::tree::{root, rust_files, text_files};

const MAX_FILE_LINES: usize = 400;
const MAX_FUNCTION_LINES: usize = 70;
/// A longer file says so, and why, in its first lines.
const REASON: &str = "Over 400 lines because";
/// Endings of what people write by hand.
const SOURCE_ENDINGS: &[&str] = &["rs", "proto", "sql", "sh", "py", "ts", "tsx", "js", "css", "html"];

#[test]
fn no_file_over_400_lines_without_a_reason_at_its_top() {
    let is_source = |path: &Path| path.extension().is_some_and(|e| SOURCE_ENDINGS.iter().any(|&s| e == s));
    let too_long: Vec<String> = text_files()
        .into_iter()
        .filter(|(path, text)| {
            let top: String = text.lines().take(12).collect();
            is_source(path) && text.lines().count() > MAX_FILE_LINES && !top.contains(REASON)
        })
        .map(|(path, text)| format!("{} {}", text.lines().count(), path.display()))
        .collect();
    assert_eq!(too_long, Vec::<String>::new());
}

/// Lengths of the functions in rustfmt'd code: from the line that begins with `fn` (after its qualifiers) to the
/// closing brace at the same indent.
fn function_lengths(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let declaration = body.split("fn ").next().unwrap_or_default();
        let qualifiers = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe", "extern", "\"C\""];
        if !body.contains("fn ") || !declaration.split_whitespace().all(|word| qualifiers.contains(&word)) {
            continue;
        }
        let indent = line.len() - body.len();
        let closing = format!("{}}}", " ".repeat(indent));
        let name = body.split("fn ").nth(1).unwrap().split(['(', '<']).next().unwrap();
        if let Some(length) = lines[start..].iter().position(|line| *line == closing) {
            found.push((name.to_owned(), length + 1));
        }
    }
    found
}

#[test]
fn functions_fit_a_screen_and_the_exceptions_only_shrink() {
    let ratchet_path = root().join("tests/tidy/long_functions.txt");
    let ratchet_text = std::fs::read_to_string(&ratchet_path).unwrap();
    let ratchet: BTreeMap<String, usize> = ratchet_text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, length)| (name.to_owned(), length.parse().unwrap()))
        .collect();
    let mut long = BTreeMap::new();
    for (path, text) in rust_files() {
        for (name, length) in function_lengths(&text).into_iter().filter(|(_, l)| *l > MAX_FUNCTION_LINES) {
            long.insert(format!("{}:{name}", path.display()), length);
        }
    }
    let grown: Vec<_> =
        long.iter().filter(|(name, length)| ratchet.get(*name).is_none_or(|max| *length > max)).collect();
    assert!(grown.is_empty(), "over {MAX_FUNCTION_LINES} lines; split them: {grown:?}");
    let stale: Vec<_> = ratchet.iter().filter(|(name, max)| long.get(*name) != Some(max)).collect();
    assert!(
        stale.is_empty(),
        "shorter by now; lower or remove these in {}: {stale:?}",
        ratchet_path.display()
    );
}

#[test]
fn the_measure_sees_a_long_function() {
    let text = format!(
        "impl A {{\n    pub(crate) async fn long<T>(\n    ) {{\n{}    }}\n}}\n",
        "        a();\n".repeat(80)
    );
    assert_eq!(function_lengths(&text), [("long".to_owned(), 83)]);
}
