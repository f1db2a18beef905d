//! A model's chat template, with the semantics that Hugging Face gives it, in bounded time and memory.
//!
//! The template comes out of a model artifact, so it is as odd as its author. [`MAX_INSTRUCTIONS`] bounds its steps
//! and `budget` what it makes. It sees `messages` and `tools` (`conversation`), `add_generation_prompt`, `bos_token`,
//! `eos_token`, `raise_exception`, and `strftime_now` where a clock is given; it reaches no file, no network and no other template.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use minijinja::machinery::{
    CompiledTemplate, Instructions, TemplateConfig, Vm, WhitespaceConfig, make_string_output,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use self_cell::self_cell;

use super::budget::{self, MAX_WORK_BYTES, TooLarge, pay_for};
use super::{TemplateError, clock, json, python_methods, python_text, sequences};
use crate::error::TextError;

/// Real templates take one or two hundred instructions a message; these take about a second.
pub(super) const MAX_INSTRUCTIONS: u64 = 4_000_000;
/// Nested loops, macros and blocks; keeps the stack small.
const MAX_RECURSION: usize = 100;
const NAME: &str = "chat_template";

struct Program<'source> {
    main: Instructions<'source>,
    blocks: BTreeMap<&'source str, Instructions<'source>>,
}

self_cell!(
    struct Compiled {
        owner: String,
        #[covariant]
        dependent: Program,
    }
);

/// Compiled once, rendered from any thread.
pub(crate) struct ChatTemplate {
    compiled: Compiled,
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl ChatTemplate {
    pub(crate) fn new(
        source: String,
        bos_token: Option<String>,
        eos_token: Option<String>,
    ) -> Result<Self, TextError> {
        let compiled = Compiled::try_new(source, |source| compile(source))?;
        Ok(Self { compiled, environment: environment(), bos_token, eos_token })
    }

    pub(crate) fn source(&self) -> &str {
        self.compiled.borrow_owner()
    }

    pub(crate) fn render(
        &self,
        messages: Value,
        tools: Value,
        add_generation_prompt: bool,
        now: Option<SystemTime>,
    ) -> Result<String, TemplateError> {
        let context = self.context(messages, tools, add_generation_prompt, now);
        let program = self.compiled.borrow_dependent();
        let mut text = String::new();
        let mut output = make_string_output(&mut text);
        let vm = Vm::new(&self.environment);
        let outcome =
            vm.eval(&program.main, context, &program.blocks, &mut output, AutoEscape::None).map(drop);
        match outcome {
            Ok(()) => Ok(text),
            Err(error) => Err(classify(&error)),
        }
    }

    fn context(
        &self,
        messages: Value,
        tools: Value,
        add_generation_prompt: bool,
        now: Option<SystemTime>,
    ) -> Value {
        let mut context = BTreeMap::from([
            ("messages", messages),
            ("tools", tools),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
        ]);
        let special = [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)];
        context.extend(
            special.into_iter().filter_map(|(name, token)| Some((name, Value::from(token.as_deref()?)))),
        );
        if let Some(now) = now {
            context.insert("strftime_now", clock::strftime_now(now));
        }
        Value::from_iter(context)
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source()).finish_non_exhaustive()
    }
}

/// Folds constants, which is not metered: minijinja bounds one at 100 MB.
fn compile(source: &str) -> Result<Program<'_>, TextError> {
    let config = TemplateConfig {
        syntax_config: SyntaxConfig,
        ws_config: WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true },
        default_auto_escape: std::sync::Arc::new(|_| AutoEscape::None),
    };
    let bad = |line: Option<usize>, reason: Option<&str>| TextError::BadTemplate {
        line: line.unwrap_or(0),
        reason: reason.unwrap_or("syntax error").to_owned(),
    };
    let compiled = no_panic(|| CompiledTemplate::new(NAME, source, &config))
        .ok_or_else(|| bad(None, Some(PANICKED)))?
        .map_err(|error| bad(error.line(), error.detail()))?;
    Ok(Program {
        main: super::instrument::instrument(&compiled.instructions),
        blocks: compiled
            .blocks
            .iter()
            .map(|(name, block)| (*name, super::instrument::instrument(block)))
            .collect(),
    })
}

const PANICKED: &str = "the template engine panicked";

/// minijinja has been seen to panic on odd templates (2.24: `5 is divisibleby(0)`, `""[::-1]`), and a model's template
/// is nobody's to trust.
fn no_panic<T>(run: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).ok()
}

/// Marks the error that a template's `raise_exception` makes.
#[derive(Debug, thiserror::Error)]
#[error("raised by the template")]
struct Raised(String);

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_unknown_method_callback(python_methods::call);
    environment.set_formatter(|out, state, value| {
        pay_for(state, value)?;
        match state.auto_escape() {
            AutoEscape::None => write!(out, "{}", python_text::python_str(value)).map_err(Error::from),
            _ => minijinja::escape_formatter(out, state, value),
        }
    });
    // What could make much of little without paying, and no chat template needs.
    for name in ["format", "batch", "slice", "sum", "zip", "chain", "pprint", "lines", "indent"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    environment.add_filter("tojson", json::tojson);
    environment.add_test("divisibleby", |value: i64, by: i64| {
        value.checked_rem(by).map(|rest| rest == 0).unwrap_or(false)
    });
    sequences::install(&mut environment);
    budget::install(&mut environment);
    environment.add_function("raise_exception", |message: String| {
        Err::<Value, Error>(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
    });
    environment
}

fn classify(error: &Error) -> TemplateError {
    let mut source = Some(error as &(dyn std::error::Error + 'static));
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        if cause.is::<TooLarge>() {
            return TemplateError::TooLarge { limit: MAX_WORK_BYTES };
        }
        if cause.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return TemplateError::OutOfFuel { limit: MAX_INSTRUCTIONS };
        }
        source = cause.source();
    }
    // The detail may quote values, so only the kind is told.
    TemplateError::Invalid { line: error.line().unwrap_or(0), reason: error.kind().to_string() }
}
