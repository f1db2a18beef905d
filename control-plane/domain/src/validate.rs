//! The rules on single values that several aggregates share.

use weir_schemas::config_snapshot::{Limits, ModelLimits};

use crate::refusal::{Refusal, Rule, invalid};

/// Longest name shown to people.
pub(crate) const TEXT_CHARS_MAX: usize = 128;
/// Longest name used by machines: an alias must fit a URL, a metric label and a log line.
pub(crate) const NAME_CHARS_MAX: usize = 128;
/// Most models that one tenant or key has limits on: the snapshot, which every node holds whole, grows with each.
const MODEL_LIMITS_MAX: usize = 100;
/// No real limit is larger; keeps sums of limits far from overflow.
const LIMIT_MAX: u64 = 1_000_000_000_000;

pub(crate) fn ensure(holds: bool, field: &'static str, rule: Rule) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(invalid(field, rule)) }
}

pub(crate) fn text(field: &'static str, value: &str) -> Result<(), Refusal> {
    let good = !value.is_empty()
        && value.trim() == value
        && value.chars().count() <= TEXT_CHARS_MAX
        && !value.chars().any(char::is_control);
    ensure(good, field, Rule::Text { max: TEXT_CHARS_MAX })
}

pub(crate) fn name(field: &'static str, value: &str) -> Result<(), Refusal> {
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '/' | '-');
    let good = value.len() <= NAME_CHARS_MAX
        && value.starts_with(|c: char| c.is_ascii_alphanumeric())
        && value.chars().all(letter);
    ensure(good, field, Rule::Name { max: NAME_CHARS_MAX })
}

pub(crate) fn range(field: &'static str, value: u64, min: u64, max: u64) -> Result<(), Refusal> {
    ensure((min..=max).contains(&value), field, Rule::Range { min, max })
}

pub(crate) fn digest(field: &'static str, value: &str) -> Result<(), Refusal> {
    let hex = value.strip_prefix("sha256:").unwrap_or_default();
    let good = hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    ensure(good, field, Rule::Digest)
}

/// Each stated limit is at least one: a tenant that may do nothing is suspended, not limited to zero.
pub(crate) fn limits(limits: &Limits) -> Result<(), Refusal> {
    let Limits {
        tokens_per_minute,
        input_tokens_per_minute,
        output_tokens_per_minute,
        requests_per_minute,
        concurrent_sequences,
        max_output_tokens,
        max_context_tokens,
    } = *limits;
    for (field, value) in [
        ("limits.tokens_per_minute", tokens_per_minute),
        ("limits.input_tokens_per_minute", input_tokens_per_minute),
        ("limits.output_tokens_per_minute", output_tokens_per_minute),
        ("limits.requests_per_minute", requests_per_minute),
        ("limits.concurrent_sequences", concurrent_sequences),
        ("limits.max_output_tokens", max_output_tokens),
        ("limits.max_context_tokens", max_context_tokens),
    ] {
        if let Some(value) = value {
            range(field, value, 1, LIMIT_MAX)?;
        }
    }
    Ok(())
}

/// The models need not exist yet: a limit may be set before its alias is.
pub(crate) fn model_limits(by_model: &ModelLimits) -> Result<(), Refusal> {
    let few = by_model.len() <= MODEL_LIMITS_MAX;
    ensure(few, "model_limits", Rule::Entries { max: MODEL_LIMITS_MAX })?;
    for (model, its_limits) in by_model {
        name("a model's name in model_limits", model)?;
        limits(its_limits)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts() {
        for (value, good) in [
            ("smollm2-135m", true),
            ("meta/llama:8b", true),
            ("", false),
            ("-x", false),
            ("a b", false),
            ("é", false),
            (&"x".repeat(129), false),
        ] {
            assert_eq!(name("name", value).is_ok(), good, "{value}");
        }
        for (value, good) in
            [("Zoë & Söhne", true), ("", false), (" x", false), ("a\nb", false), (&"é".repeat(129), false)]
        {
            assert_eq!(text("name", value).is_ok(), good, "{value}");
        }
    }

    #[test]
    fn digests_and_limits() {
        assert!(digest("digest", &format!("sha256:{}", "0a".repeat(32))).is_ok());
        for bad in ["", "sha256:00", &format!("sha256:{}", "0G".repeat(32)), &"0a".repeat(32)] {
            assert!(digest("digest", bad).is_err(), "{bad}");
        }
        let zero = Limits { requests_per_minute: Some(0), ..Limits::default() };
        assert_eq!(
            limits(&zero),
            Err(invalid("limits.requests_per_minute", Rule::Range { min: 1, max: LIMIT_MAX }))
        );
        assert_eq!(limits(&Limits::default()), Ok(()));
    }

    #[test]
    fn limits_on_models() {
        let of = |names: &[&str], limits| names.iter().map(|&name| (name.to_owned(), limits)).collect();
        let one = Limits { output_tokens_per_minute: Some(1), ..Limits::default() };
        assert_eq!(model_limits(&of(&["smollm2", "meta/llama:8b"], one)), Ok(()));
        let rule = Rule::Name { max: NAME_CHARS_MAX };
        assert_eq!(model_limits(&of(&["a b"], one)), Err(invalid("a model's name in model_limits", rule)));
        let zero = Limits { output_tokens_per_minute: Some(0), ..Limits::default() };
        assert!(model_limits(&of(&["a"], zero)).is_err());
        let many: ModelLimits = (0..=MODEL_LIMITS_MAX).map(|n| (format!("m{n}"), one)).collect();
        assert_eq!(
            model_limits(&many).unwrap_err().to_string(),
            "model_limits must hold at most 100 entries"
        );
    }
}
