//! What masks cost: the schemas of the tests, walked with random tokens under a budget of 256.
//!
//!     cargo run --release -p weir-text --example mask_bench

#[path = "shared/draw.rs"]
mod draw;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use draw::{Random, draw};
use weir_text::{Grammar, GrammarMatcher, GrammarSpec, ModelText, TextModel};

const MODEL: &[u8] = include_bytes!("../tests/fixtures/smollm2.model_text.json");
const BUDGET: u32 = 256;
const WALKS: usize = 5;

/// Times of one kind, in microseconds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn push(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1e6);
    }

    fn line(mut self, what: &str) -> String {
        self.0.sort_by(f64::total_cmp);
        let at = |share: usize| self.0.get(self.0.len() * share / 1000).copied().unwrap_or(f64::NAN);
        let (count, max) = (self.0.len(), self.0.last().copied().unwrap_or(f64::NAN));
        format!(
            "{what}: {count}, p50 {:.1}, p90 {:.1}, p99 {:.1}, max {max:.1} µs",
            at(500),
            at(900),
            at(990)
        )
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout();
    let model = TextModel::new(ModelText::from_bytes(MODEL)?)?;
    let start = Instant::now();
    Grammar::compile(&model, &GrammarSpec::JsonObject)?;
    writeln!(out, "the model's tokens and a first grammar: {:?}", start.elapsed())?;

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/schemas");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    let mut times: [Times; 5] = Default::default();
    let mut slowest = (Duration::ZERO, String::new());
    for (seed, path) in (1..).zip(&paths) {
        let spec = GrammarSpec::JsonSchema(std::fs::read_to_string(path)?);
        let start = Instant::now();
        let grammar = Grammar::compile(&model, &spec)?;
        times[0].push(start.elapsed());
        let mut random = Random::new(seed);
        for _ in 0..WALKS {
            for (kind, budget) in [(1, None), (2, Some(BUDGET))] {
                // Compiled anew, as for each request.
                let grammar = Grammar::compile(&model, &spec)?;
                let start = Instant::now();
                let mut matcher = GrammarMatcher::new(grammar, budget);
                times[4].push(start.elapsed());
                for _ in 0..BUDGET {
                    let start = Instant::now();
                    let mask = matcher.mask();
                    let took = start.elapsed();
                    times[kind].push(took);
                    if took > slowest.0 {
                        slowest = (took, format!("{path:?} with a budget of {budget:?}"));
                    }
                    let token = draw(&mask, &mut random).ok_or("a mask allows no token")?;
                    let start = Instant::now();
                    matcher.consume(token);
                    times[3].push(start.elapsed());
                    if matcher.must_end() {
                        break;
                    }
                }
            }
        }
        drop(grammar);
    }
    let names = ["compile", "mask", "mask under a budget of 256 tokens", "consume", "begin"];
    for (times, name) in times.into_iter().zip(names) {
        writeln!(out, "{}", times.line(name))?;
    }
    writeln!(out, "slowest mask: {:?}, {}", slowest.0, slowest.1)?;
    Ok(())
}
