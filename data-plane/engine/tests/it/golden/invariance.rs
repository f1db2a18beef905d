//! A row's logits do not depend on how the work was cut: not on chunks, company, pages, cached prefixes or kernels.

use weir_engine::TokenId;
use weir_engine::executor::cpu::CpuExecutor;

use super::driver::{Lane, prefill, step};
use super::fixture::{config, golden, model_path};

fn executor() -> CpuExecutor {
    CpuExecutor::load(&model_path(), &config()).unwrap()
}

fn prompt(name: &str) -> Vec<TokenId> {
    golden().prompts.into_iter().find(|prompt| prompt.name == name).unwrap().ids
}

fn assert_same_bits(a: &[f32], b: &[f32], what: &str) {
    let differing = a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    assert!(a.len() == b.len() && differing == 0, "{what}: {differing} of {} logits differ", a.len());
}

#[test]
fn chunked_prefill_gives_the_bits_of_whole_prefill() {
    let mut executor = executor();
    let tokens = prompt("prose");
    let lane = Lane::new(&tokens, 0..12);
    let whole = prefill(&mut executor, &lane, 0, tokens.len(), || 256);
    for chunk in [1, 7, 16, 33, 100] {
        let lane = Lane::new(&tokens, 20..32);
        let chunked = prefill(&mut executor, &lane, 0, tokens.len(), || chunk);
        assert_same_bits(&whole, &chunked, &format!("chunks of {chunk}"));
    }
    let mut sizes = [3, 60, 1, 40, 16].into_iter().cycle();
    let ragged =
        prefill(&mut executor, &Lane::new(&tokens, 40..52), 0, tokens.len(), || sizes.next().unwrap());
    assert_same_bits(&whole, &ragged, "ragged chunks");
}

#[test]
fn company_in_the_batch_and_the_choice_of_pages_change_no_bit() {
    let mut executor = executor();
    let tokens = prompt("chat turns");
    let alone = Lane::new(&tokens, 0..8);
    let expected = prefill(&mut executor, &alone, 0, tokens.len(), || 256);

    let scattered = Lane::new(&tokens, [90, 13, 77, 40, 9, 63, 31].into_iter());
    let others: Vec<_> = ["fifteen tokens", "python", "unicode", "chat system"]
        .into_iter()
        .zip(0_u32..)
        .map(|(name, index)| Lane::new(&prompt(name), 100 + 8 * index..108 + 8 * index))
        .collect();
    for ours in 0..=others.len() {
        let mut parts: Vec<_> = others.iter().map(|lane| (lane, 0..lane.tokens.len())).collect();
        parts.insert(ours, (&scattered, 0..tokens.len()));
        step(&mut executor, &parts);
        assert_same_bits(&expected, executor.logits(ours), &format!("row {ours} of {}", parts.len()));
    }
}

#[test]
fn decode_beside_prefill_gives_the_bits_of_decode_alone() {
    let mut executor = executor();
    let (tokens, other) = (prompt("chat explain"), prompt("prose"));
    let last = tokens.len() - 1;
    let lane = Lane::new(&tokens, 0..4);
    prefill(&mut executor, &lane, 0, last, || 256);
    step(&mut executor, &[(&lane, last..last + 1)]);
    let alone = executor.logits(0).to_vec();
    let long = Lane::new(&other, 10..24);
    step(&mut executor, &[(&lane, last..last + 1), (&long, 0..150)]);
    assert_same_bits(&alone, executor.logits(0), "with a prefill of 150 tokens beside it");
}

#[test]
fn a_cached_prefix_gives_the_bits_of_a_cold_run() {
    let mut executor = executor();
    let tokens = prompt("chat turns");
    let cold = prefill(&mut executor, &Lane::new(&tokens, 0..8), 0, tokens.len(), || 256);
    // The second lane takes the first one's full blocks and computes only what follows them.
    for cached_blocks in 1..=tokens.len() / 16 {
        let shared = 0..u32::try_from(cached_blocks).unwrap();
        let lane = Lane::new(&tokens, shared.chain(20..28));
        let warm = prefill(&mut executor, &lane, cached_blocks * 16, tokens.len(), || 256);
        assert_same_bits(&cold, &warm, &format!("{cached_blocks} cached blocks"));
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let tokens = prompt("rust");
    let run = |threads| {
        let mut executor =
            CpuExecutor::load(&model_path(), &weir_engine::executor::cpu::CpuConfig { threads, ..config() })
                .unwrap();
        prefill(&mut executor, &Lane::new(&tokens, 0..8), 0, tokens.len(), || 50)
    };
    let one = run(1);
    for threads in [2, 3] {
        assert_same_bits(&one, &run(threads), &format!("{threads} threads"));
    }
}
