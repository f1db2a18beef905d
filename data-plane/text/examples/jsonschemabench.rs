//! JSONSchemaBench (Geng et al. 2025, arXiv 2501.10868): every schema of a folder compiled, walked with random tokens and
//! its answer validated. Prints how many came to what.
//!
//!     make jsonschemabench DIR=…
//!
//! The folder holds `*.json` files, in folders of its own or not: each a schema, or what the benchmark keeps beside one under
//! `schema` or `json_schema`.

#[path = "shared/draw.rs"]
mod draw;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use draw::{Random, draw};
use serde_json::Value;
use weir_text::{Grammar, GrammarMatcher, GrammarSpec, ModelText, TextModel};

const MODEL: &[u8] = include_bytes!("../tests/fixtures/smollm2.model_text.json");
const BUDGET: u32 = 1_024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("give the folder of the schemas")?;
    let model = TextModel::new(ModelText::from_bytes(MODEL)?)?;
    let mut paths = Vec::new();
    collect(Path::new(&folder), &mut paths)?;
    paths.sort();
    let mut out = std::io::stdout();
    let mut outcomes: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let mut slowest = (Duration::ZERO, PathBuf::new());
    for (seed, path) in (1..).zip(paths) {
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&model, &path, seed)));
        outcomes.entry(outcome.unwrap_or_else(|_| "PANIC".to_owned())).or_default().push(path.clone());
        if start.elapsed() > slowest.0 {
            slowest = (start.elapsed(), path);
        }
    }
    let total: usize = outcomes.values().map(Vec::len).sum();
    let mut outcomes: Vec<_> = outcomes.into_iter().collect();
    outcomes.sort_by_key(|(_, paths)| std::cmp::Reverse(paths.len()));
    for (outcome, paths) in &outcomes {
        // What must not be is told of each.
        let shown = if outcome.starts_with(char::is_uppercase) { paths.len() } else { 1 };
        writeln!(out, "{:6}  {outcome}, as {}", paths.len(), paths[0].display())?;
        for path in &paths[1..shown] {
            writeln!(out, "        and {}", path.display())?;
        }
    }
    writeln!(out, "{total:6}  schemas, the slowest in {:?}: {}", slowest.0, slowest.1.display())?;
    Ok(())
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, paths)?;
        } else if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    Ok(())
}

/// What came of one file, without what differs from one to the next.
fn run(model: &TextModel, path: &Path, seed: u64) -> String {
    let Some(schema) = std::fs::read(path).ok().and_then(|text| schema(&text)) else {
        return "not a schema".to_owned();
    };
    let grammar = match Grammar::compile(model, &GrammarSpec::JsonSchema(schema.to_string())) {
        Ok(grammar) => grammar,
        Err(error) => return format!("refused: {}", error.to_string().chars().take(80).collect::<String>()),
    };
    let shortest = grammar.shortest_answer();
    let mut matcher = GrammarMatcher::new(grammar, Some(BUDGET));
    let (mut tokens, mut random) = (Vec::new(), Random::new(seed));
    for _ in 0..BUDGET {
        if matcher.must_end() {
            break;
        }
        let Some(token) = draw(&matcher.mask(), &mut random) else { return "failed on the way".to_owned() };
        tokens.push(token);
        matcher.consume(token);
    }
    if !matcher.must_end() {
        return match shortest {
            None => "incomplete: endings are not counted".to_owned(),
            Some(shortest) if shortest > BUDGET => "incomplete: no answer is that short".to_owned(),
            Some(_) => "INCOMPLETE".to_owned(),
        };
    }
    let Ok(validator) = jsonschema::options().should_validate_formats(true).build(&schema) else {
        return "complete, but the validator refuses the schema".to_owned();
    };
    match serde_json::from_str(&model.decode(&tokens)) {
        Ok(answer) if validator.is_valid(&answer) => "valid".to_owned(),
        Ok(answer) => {
            // The validator sees a whole number beyond 64 bits as a double, which old drafts do not take for an integer.
            let errors = validator.iter_errors(&answer).map(|error| error.schema_path.to_string());
            let keywords: BTreeSet<String> =
                errors.filter_map(|path| Some(path.rsplit_once('/')?.1.to_owned())).collect();
            format!("INVALID by {keywords:?}")
        }
        Err(error) if error.to_string().starts_with("number out of range") => {
            "complete, with a number that no double holds".to_owned()
        }
        Err(_) => "NOT JSON".to_owned(),
    }
}

fn schema(text: &[u8]) -> Option<Value> {
    let value: Value = serde_json::from_slice(text).ok()?;
    match ["schema", "json_schema"].iter().find_map(|name| value.get(name)) {
        Some(Value::String(text)) => serde_json::from_str(text).ok(),
        Some(schema @ Value::Object(_)) => Some(schema.clone()),
        _ => value.is_object().then_some(value),
    }
}
