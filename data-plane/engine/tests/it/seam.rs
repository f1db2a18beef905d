//! The rest of what crosses the seam, on a device and held against the reference: late masks, logit bias, sequences that are
//! cancelled while their rows are in flight, pages through host memory.

use std::sync::Arc;

use weir_engine::executor::cpu::ReferenceExecutor;
use weir_engine::executor::cuda::CudaExecutor;
use weir_engine::kv_cache::BlockTable;
use weir_engine::{
    Commit, Executor, Page, PageCopy, PlanRow, RowInput, Sample, SamplingParams, Seat, SeatSetup,
    SequenceEvent, SequenceId, SequenceRequest, StepPlan, TableUpdate, TokenId, TokenMask, Verdict,
};
use weir_stand_in::StandIn;

use crate::cuda::{Free, config, engine, request, run, run_with};
use crate::layers::{VOCAB, model, prompt, reference_config};

/// Allows every third token, another third after each token.
struct Thirds(u32);

impl Commit for Thirds {
    fn commit(&mut self, token: TokenId) -> Verdict {
        assert_eq!(token % 3, self.0, "the mask was kept");
        self.0 = (self.0 + 1) % 3;
        Verdict::Continue
    }

    fn mask(&mut self) -> Option<TokenMask> {
        let allowed = (0..VOCAB).filter(|token| token % 3 == self.0);
        Some(Arc::new([allowed.fold(0, |mask, token| mask | 1 << token)]))
    }
}

fn requests() -> Vec<SequenceRequest> {
    let greedy = |seed| request(&prompt(20, seed), 6, SamplingParams::GREEDY);
    let biased = vec![(3, 4.0), (4, -100.0), (11, 2.5)];
    vec![
        SequenceRequest { is_constrained: true, ..greedy(1) },
        SequenceRequest { logit_bias: biased, ..greedy(2) },
    ]
}

fn commits() -> Vec<Box<dyn Commit>> {
    vec![Box::new(Thirds(1)), Box::new(Free)]
}

#[test]
fn masks_and_biases_choose_what_they_choose_on_the_reference() {
    let stand_in = StandIn::load();
    let file = model(2);
    let mut on_device = engine(CudaExecutor::load_file(&file, &config()).unwrap());
    let ours = run_with(&mut on_device, &requests(), commits());
    drop(on_device);
    let mut reference = engine(ReferenceExecutor::load_file(&file, &reference_config()).unwrap());
    let theirs = run_with(&mut reference, &requests(), commits());
    assert_eq!(ours, theirs);
    let freed = |request| SequenceRequest { is_constrained: false, logit_bias: Vec::new(), ..request };
    let free: Vec<_> = requests().into_iter().map(freed).collect();
    let unchanged = run(&mut engine(CudaExecutor::load_file(&file, &config()).unwrap()), &free);
    assert!(ours.iter().all(|(id, answer)| unchanged[id] != *answer), "both change something");
    assert_eq!(stand_in.message(), "");
}

#[test]
fn a_sequence_cancelled_in_flight_leaves_its_neighbour_and_no_page_behind() {
    let stand_in = StandIn::load();
    let file = model(2);
    let load = || engine(CudaExecutor::load_file(&file, &config()).unwrap());
    let requests = [1, 2].map(|seed| request(&prompt(40, seed), 8, SamplingParams::GREEDY));
    let alone = run(&mut load(), &requests[..1]).into_values().next().unwrap();
    let mut engine = load();
    let kept = engine.add(requests[0].clone(), Box::new(Free)).unwrap();
    let cancelled = engine.add(requests[1].clone(), Box::new(Free)).unwrap();
    let mut tokens = Vec::new();
    let mut steps = 0;
    while engine.has_work() {
        let mut events = Vec::new();
        // Two steps are in flight here, and both have rows of it.
        if steps == 3 {
            engine.cancel(cancelled, &mut events);
        }
        engine.step(&mut events).unwrap();
        for event in events {
            match event {
                SequenceEvent::Token { id, token, .. } if id == kept => tokens.push((token, None)),
                SequenceEvent::Token { .. } => assert!(steps < 3, "nothing comes after the end"),
                SequenceEvent::Finished { .. } => {}
            }
        }
        steps += 1;
    }
    assert_eq!(tokens, alone);
    let load = engine.load();
    assert_eq!((load.running, load.referenced_blocks), (0, 0));
    engine.check_integrity().unwrap();
    assert_eq!(stand_in.message(), "");
}

fn plan(tokens: &[TokenId], start_position: u32, page: u32) -> StepPlan {
    let (sequence, seat) = (SequenceId(1), Seat(0));
    let setup = SeatSetup {
        seat,
        sequence,
        sampling: SamplingParams { logprobs: Some(VOCAB), ..SamplingParams::GREEDY },
        logit_bias: Arc::new([]),
        history: Vec::new(),
        prompt_tokens: 0,
    };
    let input = RowInput::Tokens(0..tokens.len());
    StepPlan {
        seats: vec![setup],
        copies: Vec::new(),
        tokens: tokens.to_vec(),
        rows: vec![PlanRow { sequence, seat, input, start_position, sample: Sample::Token }],
        block_tables: vec![TableUpdate { seat, layer_group: 0, blocks: BlockTable::new(vec![page]) }],
    }
}

#[test]
fn pages_travel_through_host_memory_to_another_device() {
    let stand_in = StandIn::load();
    let file = model(2);
    let load = || CudaExecutor::load_file(&file, &config()).unwrap();
    let step = |executor: &mut CudaExecutor, plan| {
        let ticket = executor.submit(plan).unwrap();
        executor.collect(ticket).unwrap()
    };
    let mut executor = load();
    step(&mut executor, plan(&prompt(9, 1), 0, 3));
    let out = PageCopy { from: Page::Pool(3), to: Page::Host(0) };
    step(&mut executor, StepPlan { copies: vec![out], ..StepPlan::default() });
    let bytes = executor.host_page(0).to_vec();
    let expected = step(&mut executor, plan(&[7], 9, 3));
    let layout = executor.capacity().layout;
    // A device holds one: each takes what it may of the memory.
    drop(executor);
    let mut other = load();
    assert_eq!((other.capacity().layout, other.capacity().page_bytes), (layout, bytes.len() as u64));
    other.host_page(0).copy_from_slice(&bytes);
    // Into another page, then within the pool, and on from there.
    let copies = vec![
        PageCopy { from: Page::Host(0), to: Page::Pool(5) },
        PageCopy { from: Page::Pool(5), to: Page::Pool(2) },
    ];
    let there = StepPlan { copies, ..plan(&[7], 9, 2) };
    assert_eq!(step(&mut other, there), expected);
    drop(other);
    assert_ne!(step(&mut load(), plan(&[7], 9, 2)), expected, "without the page");
    assert_eq!(stand_in.message(), "");
}
