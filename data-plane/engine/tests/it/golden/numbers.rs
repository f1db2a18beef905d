//! The reference kernels against Transformers, and the fast kernels against Transformers along its greedy text.

use weir_engine::executor::cpu::{CpuExecutor, ReferenceExecutor};

use super::driver::{Lane, prefill, step};
use super::fixture::{Prompt, config, golden, model_path};

/// Every logit of the reference kernels equals Transformers' to within this.
const REFERENCE_TOLERANCE: f32 = 2e-3;
const CHUNK: usize = 256;

#[test]
fn the_reference_equals_transformers_in_every_logit() {
    let prompts = golden().prompts;
    assert!(prompts.len() >= 20, "at least twenty varied prompts");
    // The reference kernels use one thread; every other prompt goes to a second executor.
    let differences = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let share = prompts.iter().skip(worker).step_by(2);
                scope.spawn(move || reference_differences(share))
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(differences.len(), prompts.len());
    for (name, difference) in differences {
        println!("{name}: largest difference {difference:.6}");
        assert!(
            difference <= REFERENCE_TOLERANCE,
            "{name}: a logit differs from Transformers' by {difference}"
        );
    }
}

fn reference_differences<'a>(prompts: impl Iterator<Item = &'a Prompt>) -> Vec<(String, f32)> {
    let mut executor = ReferenceExecutor::load(&model_path(), &config()).unwrap();
    prompts
        .map(|prompt| {
            let logits =
                prefill(&mut executor, &Lane::new(&prompt.ids, 0..64), 0, prompt.ids.len(), || CHUNK);
            (prompt.name.clone(), largest_difference(&logits, &prompt.logits))
        })
        .collect()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() })
        .fold(0.0, f32::max)
}

/// What the walk along all greedy texts measured.
#[derive(Default)]
struct Walk {
    /// |fast - Transformers| of every kept logit at every position.
    differences: Vec<f32>,
    /// Transformers' top-2 margin, and whether the fast path chose the same token.
    choices: Vec<(f32, bool)>,
}

/// The measure of the quantised arithmetic: where Transformers' choice is clearer than the noise, the fast path must make
/// the same choice, and the noise must leave most choices clear.
#[test]
fn the_fast_path_agrees_where_the_choice_is_clearer_than_its_noise() {
    let mut walk = walk_along_greedy_texts();
    walk.differences.sort_by(f32::total_cmp);
    let noise = quantile(&walk.differences, 0.99);
    let total = walk.choices.len();
    let clear: Vec<_> = walk.choices.iter().filter(|(margin, _)| *margin > noise).collect();
    let agreeing = clear.iter().filter(|(_, agrees)| *agrees).count();
    let agreeing_anywhere = walk.choices.iter().filter(|(_, agrees)| *agrees).count();
    println!("quantisation noise (99th percentile of the logit difference): {noise:.4}");
    println!(
        "median difference {:.4}, largest {:.4}",
        quantile(&walk.differences, 0.5),
        quantile(&walk.differences, 1.0)
    );
    println!(
        "positions: {total}, with a margin above the noise: {} ({:.1} %)",
        clear.len(),
        percent(clear.len(), total)
    );
    println!("agreement there: {agreeing} ({:.2} %)", percent(agreeing, clear.len()));
    println!("agreement at all positions: {agreeing_anywhere} ({:.2} %)", percent(agreeing_anywhere, total));
    assert!(total >= 20 * 64);
    assert!(percent(clear.len(), total) >= 80.0, "the noise drowns too many choices");
    assert!(
        percent(agreeing, clear.len()) >= 99.0,
        "the fast path chooses otherwise where the choice is clear"
    );
}

fn walk_along_greedy_texts() -> Walk {
    let golden = golden();
    let mut executor = CpuExecutor::load(&model_path(), &config()).unwrap();
    let mut pages = 0_u32..;
    let lanes: Vec<_> = golden
        .prompts
        .iter()
        .map(|prompt| {
            let tokens: Vec<_> =
                prompt.ids.iter().copied().chain(prompt.top2.iter().map(|top2| top2.0)).collect();
            Lane::new(&tokens, pages.by_ref().take(tokens.len().div_ceil(16)))
        })
        .collect();
    for (lane, prompt) in lanes.iter().zip(&golden.prompts).filter(|(_, prompt)| prompt.ids.len() > 1) {
        prefill(&mut executor, lane, 0, prompt.ids.len() - 1, || CHUNK);
    }
    let mut walk = Walk::default();
    for position in 0..golden.prompts[0].top2.len() {
        let at = |prompt: &Prompt| prompt.ids.len() - 1 + position;
        let parts: Vec<_> = lanes
            .iter()
            .zip(&golden.prompts)
            .map(|(lane, prompt)| (lane, at(prompt)..at(prompt) + 1))
            .collect();
        let chosen = step(&mut executor, &parts);
        for (index, prompt) in golden.prompts.iter().enumerate() {
            let kept = executor.logits(index).iter().step_by(golden.path_stride);
            walk.differences
                .extend(kept.zip(&prompt.path[position]).map(|(fast, exact)| (fast - exact).abs()));
            let top2 = prompt.top2[position];
            walk.choices.push((top2.2 - top2.3, chosen[index] == top2.0));
        }
    }
    assert!(walk.differences.iter().all(|difference| difference.is_finite()), "a logit is not a number");
    walk
}

fn quantile(sorted: &[f32], quantile: f64) -> f32 {
    sorted[((sorted.len() - 1) as f64 * quantile).round() as usize]
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole as f64
}
