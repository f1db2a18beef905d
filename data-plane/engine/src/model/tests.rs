//! What is refused, and that a small model runs.

use std::sync::Arc;

use super::test_file::{Entry, TestFile};
use super::*;
use crate::executor::cpu::{CpuConfig, CpuExecutor, ReferenceExecutor};
use crate::kv_cache::BlockTable;
use crate::{
    Executor, ExecutorError, Page, PageCopy, PlanRow, RowInput, Sample, SamplingParams, Seat, SeatSetup,
    SequenceId, StepPlan, TableUpdate, Ticket,
};

fn config() -> CpuConfig {
    CpuConfig {
        threads: 1,
        kv_bytes: 1 << 20,
        max_seats: 4,
        max_step_tokens: 32,
        context_limit: None,
        num_host_pages: 2,
    }
}

fn open(file: &TestFile) -> Result<ModelFile, LoadError> {
    ModelFile::from_bytes(file.bytes())
}

fn load(file: &TestFile, config: &CpuConfig) -> Result<CpuExecutor, LoadError> {
    CpuExecutor::load_file(&open(file)?, config)
}

/// The error's text, with its causes.
fn refusal(file: &TestFile) -> String {
    let error = load(file, &config()).expect_err("this file must be refused");
    std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

#[test]
fn facts_are_read() {
    let file = open(&TestFile::llama()).unwrap();
    let facts = file.facts();
    assert_eq!((facts.architecture.as_str(), facts.dtype.as_str()), ("llama", "F32"));
    assert_eq!((facts.num_layers, facts.num_heads, facts.num_kv_heads, facts.head_dim), (2, 2, 1, 16));
    assert_eq!((facts.vocab_size, facts.context_limit, facts.hidden_dim), (8, 64, 32));
    assert_eq!(
        facts.parameter_count,
        8 * 32 * 2 + 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48)
    );
    let tokenizer = file.tokenizer_metadata().unwrap();
    assert_eq!((tokenizer.model.as_str(), tokenizer.tokens.len()), ("gpt2", 8));
    assert_eq!((tokenizer.add_bos_token, tokenizer.chat_template), (None, None));
}

#[test]
fn each_refusal_names_its_cause() {
    let llama = TestFile::llama;
    let cases = [
        (llama().with("general.architecture", Entry::Text("mamba")), "architecture `mamba` is not supported"),
        (llama().without("general.architecture"), "no `general.architecture`"),
        (llama().without("llama.block_count"), "no `llama.block_count`"),
        (llama().with("llama.block_count", Entry::Text("two")), "`llama.block_count` is not"),
        (llama().with("llama.block_count", Entry::U32(0)), "`llama.block_count` is 0"),
        (llama().with("llama.block_count", Entry::U32(1_000_000)), "`llama.block_count` is 1000000"),
        (llama().with("llama.block_count", Entry::U32(3)), "no tensor `blk.2.attn_norm.weight`"),
        (
            llama().with("llama.block_count", Entry::U32(1)),
            "tensor `blk.1.attn_norm.weight` that this architecture",
        ),
        (llama().with("llama.attention.head_count", Entry::U32(3)), "`llama.attention.head_count` is 3"),
        (llama().with("llama.attention.head_count", Entry::U32(4)), "multiple of 16"),
        (
            llama().with("llama.attention.head_count_kv", Entry::U32(0)),
            "`llama.attention.head_count_kv` is 0",
        ),
        (llama().with("llama.attention.layer_norm_rms_epsilon", Entry::F32(f32::NAN)), "is NaN"),
        (llama().with("llama.rope.freq_base", Entry::F32(-1.0)), "`llama.rope.freq_base` is -1"),
        (llama().with("llama.rope.dimension_count", Entry::U32(8)), "`llama.rope.dimension_count` is 8"),
        (llama().with("llama.rope.scaling.type", Entry::Text("yarn")), "RoPE scaling"),
        (llama().with("llama.expert_count", Entry::U32(8)), "mixtures of experts"),
        (llama().with("llama.vocab_size", Entry::U32(9)), "`llama.vocab_size` is 9"),
        (llama().without_tensor("token_embd.weight"), "no tensor `token_embd.weight`"),
        (llama().without_tensor("blk.1.ffn_up.weight"), "no tensor `blk.1.ffn_up.weight`"),
        (
            llama().with_tensor("blk.0.attn_k.weight", &[32, 32]),
            "`blk.0.attn_k.weight` is [32, 32], expected [32, 16]",
        ),
        (llama().with_tensor("blk.0.attn_q.weight", &[32, 16, 2]), "`blk.0.attn_q.weight` is [32, 16, 2]"),
        (llama().with_tensor("output_norm.weight", &[16]), "`output_norm.weight` is [16], expected [32, 1]"),
        (
            llama().with_tensor("blk.0.attn_q.bias", &[32]),
            "tensor `blk.0.attn_q.bias` that this architecture",
        ),
        (llama().with_tensor("rope_freqs.weight", &[8]), "tensor `rope_freqs.weight`"),
    ];
    for (file, expected) in cases {
        let text = refusal(&file);
        assert!(text.contains(expected), "expected {expected:?} in {text:?}");
    }
    let truncated = TestFile::llama().bytes()[..2000].to_vec();
    assert!(matches!(ModelFile::from_bytes(truncated), Err(LoadError::File(_))));
}

#[test]
fn a_missing_output_head_means_the_embedding() {
    let executor = load(&TestFile::llama().without_tensor("output.weight"), &config()).unwrap();
    assert_eq!(executor.capacity().vocab_size, 8);
}

#[test]
fn a_budget_too_small_for_one_long_request_is_refused_with_the_needed_size() {
    // A page: 2 layers · (key + value) · 16 components · 16 positions · 2 bytes; 64 positions need four.
    let page_bytes = 2 * 2 * 16 * 16 * 2;
    let with = |kv_bytes, max_seats| load(&TestFile::llama(), &CpuConfig { kv_bytes, max_seats, ..config() });
    let text = with(4 * page_bytes - 1, 1).unwrap_err().to_string();
    assert!(text.contains("one request of full length needs 4 (8192 bytes)"), "{text}");
    let text = with(4 * page_bytes, 5).unwrap_err().to_string();
    assert!(text.contains("a block for each seat needs 5"), "{text}");
    let executor = with(4 * page_bytes, 4).unwrap();
    assert_eq!((executor.capacity().num_pages, executor.capacity().page_bytes), (4, page_bytes));
    assert_eq!(
        executor.kv_capacity().to_string(),
        "KV cache size: 64 tokens; 4 seats; longest request fits 1.0 times (formula's estimate: 64 tokens)"
    );
    let shorter = CpuConfig { kv_bytes: page_bytes, max_seats: 1, context_limit: Some(16), ..config() };
    assert_eq!(load(&TestFile::llama(), &shorter).unwrap().capacity().context_limit, 16);
}

#[test]
fn dials_out_of_range_are_named() {
    for (config, dial) in [
        (CpuConfig { threads: 0, ..config() }, "threads"),
        (CpuConfig { max_seats: 0, ..config() }, "max_seats"),
        (CpuConfig { max_step_tokens: 1 << 20, ..config() }, "max_step_tokens"),
        (CpuConfig { context_limit: Some(65), ..config() }, "context_limit"),
    ] {
        assert!(
            matches!(load(&TestFile::llama(), &config), Err(LoadError::Config { what, .. }) if what == dial)
        );
    }
}

fn plan(tokens: &[u32], start_position: u32, pages: &[u32]) -> StepPlan {
    let (sequence, seat) = (SequenceId(1), Seat(0));
    let input = RowInput::Tokens(0..tokens.len());
    StepPlan {
        seats: vec![setup(SamplingParams::GREEDY)],
        copies: Vec::new(),
        tokens: tokens.to_vec(),
        rows: vec![PlanRow { sequence, seat, input, start_position, sample: Sample::Token }],
        block_tables: vec![table(0, pages)],
    }
}

fn setup(sampling: SamplingParams) -> SeatSetup {
    SeatSetup {
        seat: Seat(0),
        sequence: SequenceId(1),
        sampling,
        logit_bias: Arc::new([]),
        history: Vec::new(),
        prompt_tokens: 0,
    }
}

fn table(seat: u32, pages: &[u32]) -> TableUpdate {
    TableUpdate { seat: Seat(seat), layer_group: 0, blocks: BlockTable::new(pages.to_vec()) }
}

fn copy(from: u32, to: u32) -> PageCopy {
    PageCopy { from: Page::Pool(from), to: Page::Pool(to) }
}

#[test]
fn plans_beyond_the_limits_are_refused() {
    let mut executor = load(&TestFile::llama(), &config()).unwrap();
    let pages = executor.capacity().num_pages;
    assert!(matches!(
        executor.submit(plan(&[8], 0, &[0])),
        Err(ExecutorError::UnknownToken { token: 8, .. })
    ));
    for bad in [
        plan(&[1], 0, &[pages]),
        plan(&[1], 64, &[0, 1, 2, 3, 4]),
        plan(&[1], 16, &[0]),
        StepPlan { copies: vec![copy(0, pages)], ..plan(&[1], 0, &[0]) },
        StepPlan { copies: vec![PageCopy { from: Page::Pool(0), to: Page::Host(2) }], ..plan(&[1], 0, &[0]) },
        StepPlan {
            copies: vec![copy(0, 1), PageCopy { from: Page::Pool(0), to: Page::Host(0) }],
            ..plan(&[1], 0, &[0])
        },
        StepPlan { copies: vec![copy(0, 1); 9], ..plan(&[1], 0, &[0]) },
        StepPlan { seats: Vec::new(), ..plan(&[1], 0, &[0]) },
        StepPlan { block_tables: Vec::new(), ..plan(&[1], 0, &[0]) },
        StepPlan {
            block_tables: vec![TableUpdate { layer_group: 1, ..table(0, &[1]) }],
            ..plan(&[1], 0, &[0])
        },
        StepPlan { block_tables: vec![table(4, &[0])], ..plan(&[1], 0, &[0]) },
    ] {
        assert!(matches!(executor.submit(bad), Err(ExecutorError::InvalidPlan(_))));
    }
    let ticket = executor.submit(plan(&[1], 0, &[0])).unwrap();
    assert!(matches!(executor.collect(Ticket(9)), Err(ExecutorError::UnknownTicket(Ticket(9)))));
    assert_eq!(executor.collect(ticket).unwrap().tokens.len(), 1);
    assert!(executor.collect(ticket).is_err());
}

#[test]
fn a_copied_page_continues_as_the_original_does_and_rows_without_sampling_give_nothing() {
    let file = open(&TestFile::llama()).unwrap();
    let mut executor = ReferenceExecutor::load_file(&file, &config()).unwrap();
    let mut run = |plan| {
        let ticket = executor.submit(plan).unwrap();
        (executor.collect(ticket).unwrap().tokens, executor.logits(0).to_vec())
    };
    let mut prompt = plan(&[1, 2, 3], 0, &[0]);
    prompt.rows[0].sample = Sample::No;
    assert_eq!(run(prompt).0, []);
    let (sampled, original) = run(plan(&[4], 3, &[0]));
    let largest = original.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    assert_eq!(original[sampled[0] as usize], largest);
    // Position 3 of page 0 is overwritten by the copy's owner only in its own page.
    let mut copied = plan(&[4], 3, &[5]);
    copied.copies = vec![copy(0, 5)];
    assert_eq!(run(copied).1, original);
    assert_ne!(run(plan(&[5], 3, &[5])).1, original);
}

#[test]
fn a_seat_feeds_its_last_token_to_the_next_step() {
    let mut executor = load(&TestFile::llama(), &config()).unwrap();
    let mut run = |plan| {
        let ticket = executor.submit(plan).unwrap();
        executor.collect(ticket).unwrap().tokens
    };
    let first = run(plan(&[1, 2, 3], 0, &[0]));
    let mut next = plan(&[], 3, &[0]);
    next.seats.clear();
    next.rows[0].input = RowInput::LastSampled;
    let from_seat = run(next);
    assert_eq!(from_seat, run(plan(&first, 3, &[0])));
    assert!(executor.submit(plan(&[], 3, &[0])).is_err(), "a row without a token");
}

#[test]
fn pages_travel_through_host_memory() {
    let file = open(&TestFile::llama()).unwrap();
    let mut executor = ReferenceExecutor::load_file(&file, &config()).unwrap();
    let run = |executor: &mut ReferenceExecutor, plan| {
        let ticket = executor.submit(plan).unwrap();
        executor.collect(ticket).unwrap();
        executor.logits(0).to_vec()
    };
    run(&mut executor, plan(&[1, 2, 3], 0, &[0]));
    let expected = run(&mut executor, plan(&[4], 3, &[0]));
    let out = PageCopy { from: Page::Pool(0), to: Page::Host(1) };
    run(&mut executor, StepPlan { copies: vec![out], ..StepPlan::default() });
    let bytes = executor.host_page(1).to_vec();
    assert_eq!(bytes.len() as u64, executor.capacity().page_bytes);
    // To another executor of the same layout, into another page.
    let mut other = ReferenceExecutor::load_file(&file, &config()).unwrap();
    assert_eq!(other.capacity().layout, executor.capacity().layout);
    other.host_page(0).copy_from_slice(&bytes);
    let mut there = plan(&[4], 3, &[2]);
    there.copies = vec![PageCopy { from: Page::Host(0), to: Page::Pool(2) }];
    assert_eq!(run(&mut other, there), expected);
    assert_ne!(load(&TestFile::llama(), &config()).unwrap().capacity().layout, executor.capacity().layout);
}

#[test]
fn masks_come_after_submission_and_before_sampling() {
    let mut executor = load(&TestFile::llama(), &config()).unwrap();
    let mut masked = plan(&[1, 2, 3], 0, &[0]);
    masked.rows[0].sample = Sample::Masked;
    for token in 0..8 {
        let ticket = executor.submit(plan_like(&masked)).unwrap();
        executor.supply_masks(ticket, vec![Some(vec![1 << token].into())]).unwrap();
        assert_eq!(executor.collect(ticket).unwrap().tokens, [token]);
    }
    let ticket = executor.submit(plan_like(&masked)).unwrap();
    assert!(executor.supply_masks(ticket, Vec::new()).is_err(), "one for each row");
    assert!(executor.supply_masks(Ticket(99), vec![None]).is_err());
    assert!(executor.collect(ticket).is_err(), "not without them");
    let ticket = executor.submit(plan_like(&masked)).unwrap();
    executor.supply_masks(ticket, vec![Some(vec![0].into())]).unwrap();
    let output = executor.collect(ticket).unwrap();
    assert_eq!(
        (output.num_tokens, output.tokens),
        (vec![0], vec![]),
        "a mask that allows nothing gives nothing"
    );
}

fn plan_like(plan: &StepPlan) -> StepPlan {
    StepPlan {
        seats: plan.seats.clone(),
        copies: plan.copies.clone(),
        tokens: plan.tokens.clone(),
        rows: plan.rows.clone(),
        block_tables: plan.block_tables.clone(),
    }
}
