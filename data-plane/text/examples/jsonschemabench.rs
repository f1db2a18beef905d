//! JSONSchemaBench (Geng et al. 2025, arXiv 2501.10868): every schema of a folder compiled, walked with random tokens and
//! its answer validated. Prints how many came to what, and each that came to what must not be.
//!
//!     make jsonschemabench DIR=… SEED=1
//!
//! `DIR` is a `*.json` file, or a folder that holds such in folders of its own or not: each a schema, or what the benchmark
//! keeps beside one under `schema` or `json_schema`. A walk depends on its schema and the seed alone. Works on every core.

#[path = "shared/draw.rs"]
mod draw;
#[path = "shared/read.rs"]
mod read;

use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use draw::{Random, draw};
use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use serde_json::{Value, json};
use weir_text::{Grammar, GrammarMatcher, GrammarSpec, ModelText, TextModel};

const MODEL: &[u8] = include_bytes!("../tests/fixtures/smollm2.model_text.json");
const BUDGET: u32 = 1_024;
const MAX_SHOWN_CHARS: usize = 300;
/// Schemas are validated by recursion; only the pages that are used cost memory.
const STACK_BYTES: usize = 256 << 20;

/// What came of a schema: the kind, without what differs from one to the next, and for what must not be the rest.
struct Outcome {
    kind: String,
    detail: Option<String>,
}

struct Done {
    path: PathBuf,
    outcome: Outcome,
    took: Duration,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let seed: u64 = arguments.next().ok_or("give a seed and the folder of the schemas")?.parse()?;
    let model = TextModel::new(ModelText::from_bytes(MODEL)?)?;
    let mut paths = Vec::new();
    for path in arguments {
        collect(Path::new(&path), &mut paths)?;
    }
    paths.sort();
    let start = Instant::now();
    let done = run_all(&model, paths, seed)?;
    report(&done, start.elapsed())?;
    Ok(())
}

fn collect(path: &Path, paths: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if path.is_dir() {
        for entry in std::fs::read_dir(path)? {
            collect(&entry?.path(), paths)?;
        }
    } else if path.extension().is_some_and(|extension| extension == "json") {
        paths.push(path.to_owned());
    }
    Ok(())
}

fn run_all(model: &TextModel, paths: Vec<PathBuf>, seed: u64) -> std::io::Result<Vec<Done>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            let start = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| run(model, path, seed)));
            let outcome = outcome.unwrap_or_else(|_| bad("PANIC", String::new()));
            done.push(Done { path: path.clone(), outcome, took: start.elapsed() });
        }
        done
    };
    std::thread::scope(|scope| {
        let spawn = |_| std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let num_cores = std::thread::available_parallelism()?.get();
        let threads = (0..num_cores).map(spawn).collect::<std::io::Result<Vec<_>>>()?;
        let done =
            threads.into_iter().map(|thread| thread.join().map_err(|_| std::io::Error::other("a panic")));
        let mut done: Vec<Done> = done.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        done.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(done)
    })
}

fn report(done: &[Done], took: Duration) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    let mut kinds: BTreeMap<&str, Vec<&Done>> = BTreeMap::new();
    for schema in done {
        kinds.entry(&schema.outcome.kind).or_default().push(schema);
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, schemas)| std::cmp::Reverse(schemas.len()));
    for (kind, schemas) in &kinds {
        writeln!(out, "{:6}  {kind}, as {}", schemas.len(), schemas[0].path.display())?;
        for Done { path, outcome, .. } in schemas {
            if let Some(detail) = &outcome.detail {
                writeln!(out, "        {}: {detail}", path.display())?;
            }
        }
    }
    if let Some(slowest) = done.iter().max_by_key(|schema| schema.took) {
        let (path, slowest) = (slowest.path.display(), slowest.took);
        writeln!(out, "{:6}  schemas in {took:.0?}, the slowest in {slowest:.1?}: {path}", done.len())?;
    }
    Ok(())
}

fn run(model: &TextModel, path: &Path, seed: u64) -> Outcome {
    let text = std::fs::read(path).unwrap_or_default();
    let Some(schema) = schema(&text) else { return good("not a schema") };
    let grammar = match Grammar::compile(model, &GrammarSpec::JsonSchema(schema.to_string())) {
        Ok(grammar) => grammar,
        Err(error) => return good(format!("refused: {}", shown(&error.to_string(), 80))),
    };
    let shortest = grammar.shortest_answer();
    let mut matcher = GrammarMatcher::new(grammar, Some(BUDGET));
    let (mut tokens, mut random) = (Vec::new(), Random::new(seed ^ hash(&text)));
    for _ in 0..BUDGET {
        if matcher.must_end() {
            break;
        }
        let Some(token) = draw(&matcher.mask(), &mut random) else {
            return bad("FAILED on the way", format!("after {} tokens", tokens.len()));
        };
        tokens.push(token);
        matcher.consume(token);
    }
    if matcher.must_end() {
        return validated(&schema, &model.decode(&tokens));
    }
    match shortest {
        None => good("incomplete: endings are not counted"),
        Some(shortest) if shortest > BUDGET => good("incomplete: no answer is that short"),
        Some(_) => bad("INCOMPLETE", model.decode(&tokens)),
    }
}

fn validated(schema: &Value, text: &str) -> Outcome {
    let Ok(validator) = jsonschema::options().should_validate_formats(true).build(schema) else {
        return good("complete, but the validator refuses the schema");
    };
    let answer = match read::read(text) {
        Ok(answer) => answer,
        Err(error) => return bad("NOT JSON", format!("{error}: {text}")),
    };
    let mut excuses = Vec::new();
    for error in validator.iter_errors(&answer) {
        match excuse(&error) {
            Some(excuse) => excuses.push(excuse),
            None => return bad("INVALID", format!("{error} ({})", error.schema_path)),
        }
    }
    excuses.first().map_or(good("valid"), |excuse| good(format!("valid, but {excuse}")))
}

/// Why an error is the validator's own, if it is.
fn excuse(error: &ValidationError<'_>) -> Option<&'static str> {
    let number = error.instance.as_f64()?;
    match &error.kind {
        // A whole number beyond 64 bits is read as a double, which draft 4 takes for no integer.
        ValidationErrorKind::Type { .. } if number.abs() >= 2_f64.powi(63) && number.fract() == 0.0 => {
            Some("with an integer beyond 64 bits")
        }
        // It takes no negative number for a multiple of a fraction: its absolute value is the same multiple.
        ValidationErrorKind::MultipleOf { multiple_of } if number < 0.0 => {
            let schema = json!({"multipleOf": multiple_of});
            jsonschema::is_valid(&schema, &json!(-number)).then_some("with a negative multiple of a fraction")
        }
        _ => None,
    }
}

fn good(kind: impl Into<String>) -> Outcome {
    Outcome { kind: kind.into(), detail: None }
}

fn bad(kind: &str, detail: String) -> Outcome {
    Outcome { kind: kind.to_owned(), detail: Some(shown(&detail, MAX_SHOWN_CHARS)) }
}

fn shown(text: &str, max_chars: usize) -> String {
    text.chars().take(max_chars).collect()
}

/// FNV-1a (Fowler, Noll, Vo 1991).
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn schema(text: &[u8]) -> Option<Value> {
    let value: Value = serde_json::from_slice(text).ok()?;
    match ["schema", "json_schema"].iter().find_map(|name| value.get(name)) {
        Some(Value::String(text)) => serde_json::from_str(text).ok(),
        Some(schema @ Value::Object(_)) => Some(schema.clone()),
        _ => value.is_object().then_some(value),
    }
}
