//! Grammars that nobody should send.

use weir_text::{Grammar, GrammarError, GrammarMatcher, GrammarSpec, MAX_GRAMMAR_BYTES, MAX_GRAMMAR_DEPTH};

use crate::fixtures::SMOLLM2;

fn compile(spec: GrammarSpec) -> Result<Grammar, GrammarError> {
    Grammar::compile(&SMOLLM2, &spec)
}

fn schema(text: impl Into<String>) -> Result<Grammar, GrammarError> {
    compile(GrammarSpec::JsonSchema(text.into()))
}

fn lark(text: impl Into<String>) -> Result<Grammar, GrammarError> {
    compile(GrammarSpec::Lark(text.into()))
}

#[test]
fn what_is_not_supported_is_named() {
    let check = |text: &str, named: &str| {
        let message = schema(text).unwrap_err().to_string();
        assert!(message.contains(named), "{text}: {message}");
        assert!(message.len() < 400 && !message.contains('\n'), "{message}");
    };
    check(r#"{"type": "array", "uniqueItems": true}"#, "`uniqueItems`");
    check(r#"{"not": {"type": "string"}}"#, "`not`");
    check(r#"{"if": {"type": "string"}, "then": {"const": "a"}}"#, "`if`, `then`");
    check(r#"{"properties": {"a": {"contains": {"type": "null"}}}}"#, "`contains`");
    check(r#"{"type": "object", "dependentRequired": {"a": ["b"]}}"#, "`dependentRequired`");
    check(r#"{"type": "string", "format": "color"}"#, "`format` with the value `color`");
    check(r#"{"type": "object", "minProperties": 2}"#, "`minProperties`");
    check(r#"{"required": ["a", "a", "b"], "minProperties": 4}"#, "`minProperties`");
    check(r#"{"properties": {"a": {}}, "type": "object", "maxProperties": 1}"#, "`maxProperties`");
    check(r#"{"enum": ["a", "\u0001"]}"#, "control characters");
    check(r#"{"properties": {"\u0001": {}}}"#, "control characters");
    check(r#"{"type": "string", "pattern": "(?=a)b"}"#, "look");
    check(r#"{"oneOf": [{"type": "integer"}, {"type": "number"}]}"#, "`oneOf`");
    check(r#"{"$ref": "https://example.com/schema"}"#, "https://example.com/schema");
    check(r##"{"$ref": "#/$defs/none"}"##, "none");
    check(r#"{"x-guidance": {"lenient": true}}"#, "`x-guidance`");
    check(r#"{"type": "string", "minLength": 5, "maxLength": 4}"#, "minLength");
    check(r#"{"type": "strings"}"#, "strings");
    check("[]", "object");
    check("true", "object");
    check("{", "JSON");
}

#[test]
fn what_has_no_finite_instance_is_refused() {
    let next = r##"{"type":"object","properties":{"n":{"$ref":"#"}},"required":["n"]}"##;
    let message = schema(next).unwrap_err().to_string();
    assert_eq!(
        message,
        "the schema has no finite instance: `#/properties/n` is needed and leads back to `#` each time"
    );
    for text in [
        r##"{"$ref": "#"}"##,
        r##"{"allOf": [{"$ref": "#"}]}"##,
        r##"{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}"##,
    ] {
        let message = schema(text).unwrap_err().to_string();
        assert!(message.contains("no finite instance"), "{text}: {message}");
    }
    for text in ["start: start", r##"start: %json {"$ref": "#"}"##] {
        assert!(lark(text).is_err(), "{text}");
    }
    let alternatives: Vec<String> = (0..9_000).map(|number| format!("\"a{number}\"")).collect();
    match lark(format!("start: {}", alternatives.join(" | "))) {
        Ok(grammar) => assert!(!GrammarMatcher::new(grammar, None).mask().iter().all(|word| *word == 0)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[test]
fn of_a_schema_within_a_grammar_the_rule_is_named_and_nothing_quoted() {
    let message = lark("start: \"x\" a\na: %json {\"type\": \"array\", \"uniqueItems\": true}")
        .unwrap_err()
        .to_string();
    let says = "the JSON Schema keyword `uniqueItems` is not supported";
    assert_eq!(GrammarError::in_rule(&message), Some(("a", says)));
    let message = lark("start: %json {\"type\": \"strings\"}").unwrap_err().to_string();
    let (rule, says) = GrammarError::in_rule(&message).unwrap();
    assert_eq!(rule, "start");
    assert!(says.contains("strings") && !says.contains("json") && !says.contains('|'), "{says}");
}

#[test]
fn what_is_too_large_or_too_deep_is_refused_at_once() {
    let deep = |levels: usize| {
        format!(r#"{}{{"type": "null"}}{}"#, r#"{"items":"#.repeat(levels), "}".repeat(levels))
    };
    assert!(schema(deep(MAX_GRAMMAR_DEPTH - 1)).is_ok());
    assert!(matches!(schema(deep(MAX_GRAMMAR_DEPTH)), Err(GrammarError::TooLarge { .. })));
    assert!(matches!(schema("[".repeat(MAX_GRAMMAR_BYTES)), Err(GrammarError::TooLarge { .. })));
    assert!(matches!(schema(" ".repeat(MAX_GRAMMAR_BYTES + 1)), Err(GrammarError::TooLarge { .. })));
    assert!(matches!(lark("(".repeat(1_000)), Err(GrammarError::TooLarge { .. })));
    assert!(matches!(lark("#".repeat(MAX_GRAMMAR_BYTES + 1)), Err(GrammarError::TooLarge { .. })));
    let patterns: String = (0..40).map(|n| format!(r#""^{n}$": {{}},"#)).collect();
    let patterns = format!(r#"{{"patternProperties": {{{}"z": {{}}}}}}"#, patterns);
    assert!(matches!(schema(patterns), Err(GrammarError::TooLarge { .. })));
}

/// Each of these is a few hundred bytes that ask for a lot.
#[test]
fn nothing_panics_or_goes_on_for_ever() {
    let references: String =
        (0..2_000).map(|n| format!(r##""{n}": {{"$ref": "#/$defs/{}"}},"##, n + 1)).collect();
    let chain = format!(r##"{{"$defs": {{{references}"2000": {{"type": "null"}}}}, "$ref": "#/$defs/0"}}"##);
    let doubling: String = (0..30)
        .map(|n| {
            format!(r##""{n}": {{"anyOf": [{{"$ref": "#/$defs/{0}"}}, {{"$ref": "#/$defs/{0}"}}]}},"##, n + 1)
        })
        .collect();
    let doubling = format!(r##"{{"$defs": {{{doubling}"30": {{"type": "null"}}}}, "$ref": "#/$defs/0"}}"##);
    let rules: String = (0..2_000).map(|n| format!("r{n}: r{}\n", n + 1)).collect();
    for spec in [
        GrammarSpec::JsonSchema(chain),
        GrammarSpec::JsonSchema(doubling),
        GrammarSpec::JsonSchema(r##"{"$ref": "#"}"##.into()),
        GrammarSpec::JsonSchema(r##"{"allOf": [{"$ref": "#"}, {"$ref": "#"}]}"##.into()),
        GrammarSpec::JsonSchema(r#"{"type": "string", "minLength": 1000000000}"#.into()),
        GrammarSpec::JsonSchema(r#"{"type": "string", "minLength": 18446744073709551615}"#.into()),
        GrammarSpec::JsonSchema(r#"{"type": "array", "minItems": 1000000000}"#.into()),
        GrammarSpec::JsonSchema(
            r#"{"type": "string", "pattern": "((((a{1,99}){1,99}){1,99}){1,99})"}"#.into(),
        ),
        GrammarSpec::JsonSchema(r#"{"type": "string", "pattern": "(a|b)*a(a|b){200}"}"#.into()),
        GrammarSpec::JsonSchema(r#"{"type": "integer", "multipleOf": 1e-300}"#.into()),
        GrammarSpec::JsonSchema(r#"{"type": "integer", "minimum": 1e300}"#.into()),
        GrammarSpec::JsonSchema(r#"{"minimum": "é"}"#.into()),
        GrammarSpec::JsonSchema(format!(r#"{{"minimum": "{}"}}"#, "é".repeat(100))),
        GrammarSpec::Lark(format!("start: r0\n{rules}r2000: \"a\"")),
        GrammarSpec::Lark("start: start \"a\" | \"a\" start start start | \"\"".into()),
        GrammarSpec::Lark("start: /(.|\\n)*/ /(.|\\n)*/ /(.|\\n)*/".into()),
        GrammarSpec::Lark("start: %json {\"type\": \"integer\"} \"é".into()),
        GrammarSpec::Lark(String::new()),
        GrammarSpec::Lark("start: <[999999999]>".into()),
    ] {
        let Ok(grammar) = compile(spec) else { continue };
        let mut matcher = GrammarMatcher::new(grammar, Some(20));
        for _ in 0..20 {
            let mask = matcher.mask();
            let first = (0..).zip(mask.iter()).find(|(_, word)| **word != 0);
            let Some((word, bits)) = first else { break };
            matcher.consume(word * 32 + bits.trailing_zeros());
        }
    }
}

#[test]
fn a_token_that_is_not_allowed_leaves_none() {
    let mut matcher = GrammarMatcher::new(schema(r#"{"type": "integer"}"#).unwrap(), None);
    matcher.consume(SMOLLM2.encode("x").unwrap()[0]);
    assert!(matcher.is_failed() && !matcher.may_end() && !matcher.must_end());
    assert!(matcher.mask().iter().all(|word| *word == 0));
    let mut matcher = GrammarMatcher::new(schema(r#"{"type": "integer"}"#).unwrap(), Some(5));
    matcher.consume(u32::MAX);
    assert!(matcher.is_failed());
}
