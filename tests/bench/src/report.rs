//! The tables, and whether the targets are met.

use std::process::ExitCode;
use std::time::Duration;

use crate::measure::{Measured, PACE_MS, Results, STREAMS, TOKENS};
use crate::prompt::PROMPT_TOKENS;

/// Microseconds of CPU that a request may cost above the floor, its tokenising excluded.
const REQUEST_US: f64 = 150.0;
/// And each token of its answer.
const TOKEN_US: f64 = 3.0;
/// Microseconds that a token of a prompt may take to tokenise.
const TOKENISE_US: f64 = 1.0;
/// Microseconds that the median latency may be above the floor's, at one stream.
const LATENCY_US: f64 = 350.0;

/// What the targets compare.
const OURS: [&str; 2] = ["weir", "bare axum"];

pub(crate) fn print(results: &Results) -> ExitCode {
    let (paced, at_once): (Vec<&Measured>, Vec<&Measured>) =
        results.measured.iter().partition(|measured| measured.paced);
    let of_answers = "answers/s | CPU of 100 tokens";
    let of_times = "first token p50 / p99 ms | answer p50 / p99 ms | peak MiB | events";
    println!(
        "\nThe engine answers at once; microseconds of CPU, of an answer with 100 tokens, with 1, and of a token:\n"
    );
    println!("| streams | | {of_answers} | of 1 | of a token | {of_times} |\n|{}", " --- |".repeat(10));
    for long in at_once.iter().filter(|measured| measured.tokens == TOKENS[0]) {
        println!("{}", row(long, Some(find(&at_once, long.name, long.streams, TOKENS[1]))));
    }
    println!("\n{} tokens/s for each stream:\n", 1000 / PACE_MS);
    println!("| streams | | {of_answers} | {of_times} |\n|{}", " --- |".repeat(8));
    for measured in paced {
        println!("{}", row(measured, None));
    }
    println!("\n| microseconds above the bare handler | | target | |\n|{}", " --- |".repeat(4));
    let mut all_met = true;
    for Target { what, value, limit } in targets(results, &at_once) {
        let is_met = value <= limit;
        all_met &= is_met;
        println!("| {what} | {value:.1} | {limit} | {} |", if is_met { "met" } else { "MISSED" });
    }
    println!(
        "\nA prompt of {PROMPT_TOKENS} tokens takes {:.1} µs to tokenise, and {:.1} to render (part of the CPU of a request).",
        micros(results.prompt.tokenise),
        micros(results.prompt.render)
    );
    if all_met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Target {
    what: String,
    value: f64,
    limit: f64,
}

fn targets(results: &Results, at_once: &[&Measured]) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut target = |what: String, value, limit| targets.push(Target { what, value, limit });
    let tokenise_us = micros(results.prompt.tokenise);
    for streams in STREAMS {
        let [weir, bare] = OURS.map(|name| {
            let [long, short] = TOKENS.map(|tokens| cpu_us(find(at_once, name, streams, tokens)));
            let token = (long - short) / f64::from(TOKENS[0] - TOKENS[1]);
            (short - token, token)
        });
        let request = weir.0 - bare.0 - tokenise_us;
        target(format!("CPU of a request, {streams} streams, without tokenising"), request, REQUEST_US);
        target(format!("CPU of a token, {streams} streams"), weir.1 - bare.1, TOKEN_US);
    }
    let per_token = tokenise_us / PROMPT_TOKENS as f64;
    target("CPU of tokenising, a token of the prompt".to_owned(), per_token, TOKENISE_US);
    let [weir, bare] = OURS.map(|name| quantile(&find(at_once, name, 1, TOKENS[0]).seen.first, 50));
    target("median time to the first token, 1 stream".to_owned(), micros(weir) - micros(bare), LATENCY_US);
    targets
}

fn find<'a>(measured: &[&'a Measured], name: &str, streams: usize, tokens: u32) -> &'a Measured {
    let is_it = |m: &&&Measured| (m.name, m.streams, m.tokens) == (name, streams, tokens);
    measured.iter().find(is_it).expect("everything was measured")
}

fn row(long: &Measured, short: Option<&Measured>) -> String {
    let seen = &long.seen;
    let mut cpu = format!("{:.0}", cpu_us(long));
    if let Some(short) = short {
        let token = (cpu_us(long) - cpu_us(short)) / f64::from(TOKENS[0] - TOKENS[1]);
        cpu += &format!(" | {:.0} | {token:.2}", cpu_us(short));
    }
    format!(
        "| {} | {} | {:.0} | {cpu} | {} | {} | {} | {:.0} |",
        long.streams,
        long.name,
        seen.answers as f64 / seen.elapsed.as_secs_f64(),
        quantiles(&seen.first),
        quantiles(&seen.whole),
        long.peak_bytes >> 20,
        seen.token_events,
    )
}

fn cpu_us(measured: &Measured) -> f64 {
    micros(measured.cpu) / measured.seen.answers as f64
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn quantiles(ascending: &[Duration]) -> String {
    let ms = |per_cent| quantile(ascending, per_cent).as_secs_f64() * 1e3;
    format!("{:.2} / {:.2}", ms(50), ms(99))
}

fn quantile(ascending: &[Duration], per_cent: usize) -> Duration {
    ascending[(ascending.len() - 1) * per_cent / 100]
}
