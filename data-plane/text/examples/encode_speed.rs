//! Microseconds per token of encoding, decoding and stop matching, on one core.
//!
//!     cargo run --release -p weir-text --example encode_speed [MODEL_TEXT.json] [TEXT_FILE]

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_text::{Detokenizer, ModelText, StopMatcher, TextModel};

const MODEL: &[u8] = include_bytes!("../tests/fixtures/smollm2.model_text.json");
const TEXT: &str = include_str!("../src/text_model.rs");
const MIN_TIME: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = arguments.next().map_or(Ok(MODEL.to_vec()), std::fs::read)?;
    let text = arguments.next().map_or(Ok(TEXT.to_owned()), std::fs::read_to_string)?;
    let mut out = std::io::stdout();

    let start = Instant::now();
    let data = ModelText::from_bytes(&model)?;
    let parsed = start.elapsed();
    let model = Arc::new(TextModel::new(data)?);
    writeln!(out, "load: parse {parsed:?}, build {:?}", start.elapsed() - parsed)?;

    let ids = model.encode(&text)?;
    let bytes_per_token = text.len() as f64 / ids.len() as f64;
    writeln!(out, "text: {} bytes, {} tokens, {bytes_per_token:.2} bytes per token", text.len(), ids.len())?;
    let encode = time(|| model.encode(&text).map(|ids| ids.len()).unwrap_or(0));
    let decode = time(|| {
        let mut detokenizer = Detokenizer::new(Arc::clone(&model));
        ids.iter().map(|&id| detokenizer.push(id).len()).sum()
    });
    let stops = ["\n\nUser:", "</answer>", "<|im_end|>", "aaaab"].map(str::to_owned);
    let stop = time(|| {
        let mut detokenizer = Detokenizer::new(Arc::clone(&model));
        let mut matcher = StopMatcher::new(&stops).expect("within the limits");
        ids.iter().map(|&id| matcher.push(detokenizer.push(id)).emit.len()).sum()
    });
    for (name, seconds) in [("encode", encode), ("decode", decode), ("decode and match 4 stop strings", stop)]
    {
        writeln!(out, "{name}: {:.3} µs per token", seconds * 1e6 / ids.len() as f64)?;
    }
    Ok(())
}

/// Seconds per run, the best of as many as fit.
fn time(mut run: impl FnMut() -> usize) -> f64 {
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed() < MIN_TIME {
        let start = Instant::now();
        std::hint::black_box(run());
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
