//! The simulated device under the real engine.

use std::time::{Duration, Instant};

use weir_engine::executor::sim::{CostModel, SimConfig, SimExecutor, token_at};
use weir_engine::{
    Commit, Engine, EngineConfig, Executor, SequenceEvent, SequenceId, SequenceRequest, TokenId, TokenMask,
    Verdict,
};

use crate::support::request;

fn config(cost: CostModel) -> SimConfig {
    SimConfig {
        num_pages: 1000,
        max_seats: 8,
        max_step_tokens: 512,
        context_limit: 4096,
        vocab_size: 50_000,
        cost,
    }
}

struct Free;

impl Commit for Free {
    fn commit(&mut self, _token: TokenId) -> Verdict {
        Verdict::Continue
    }
}

/// Only these.
struct Only(Vec<TokenId>);

impl Commit for Only {
    fn commit(&mut self, _token: TokenId) -> Verdict {
        Verdict::Continue
    }

    fn mask(&mut self) -> Option<TokenMask> {
        let mut words = vec![0; 50_000_usize.div_ceil(32)];
        for token in &self.0 {
            words[*token as usize / 32] |= 1 << (token % 32);
        }
        Some(words.into())
    }
}

fn engine(cost: CostModel) -> Engine<SimExecutor, Box<dyn Commit>> {
    let executor = SimExecutor::new(config(cost));
    Engine::new(EngineConfig::for_capacity(&executor.capacity()), executor).unwrap()
}

fn run(engine: &mut Engine<SimExecutor, Box<dyn Commit>>) -> Vec<(SequenceId, TokenId)> {
    let mut tokens = Vec::new();
    while engine.has_work() {
        let mut events = Vec::new();
        engine.step(&mut events).unwrap();
        for event in events {
            if let SequenceEvent::Token { id, token, .. } = event {
                tokens.push((id, token));
            }
        }
    }
    tokens
}

#[test]
fn tokens_are_a_function_of_seed_and_position() {
    let mut engine = engine(CostModel::default());
    let ids: Vec<_> =
        (0..20).map(|seed| engine.add(request(seed, 30, 25), Box::new(Free)).unwrap()).collect();
    let tokens = run(&mut engine);
    for (seed, id) in (0..20).zip(ids) {
        let of_one: Vec<_> = tokens.iter().filter(|(of, _)| *of == id).map(|(_, token)| *token).collect();
        let expected: Vec<_> =
            (30..55).map(|position| token_at(seed, position, 50_000, None).unwrap()).collect();
        assert_eq!(of_one, expected);
    }
}

#[test]
fn masks_are_kept() {
    let mut engine = engine(CostModel::default());
    let constrained = SequenceRequest { is_constrained: true, ..request(3, 30, 40) };
    let allowed = vec![5, 77, 4000, 49_999];
    let id = engine.add(constrained, Box::new(Only(allowed.clone()))).unwrap();
    engine.add(request(4, 30, 40), Box::new(Free)).unwrap();
    let tokens: Vec<_> =
        run(&mut engine).into_iter().filter(|(of, _)| *of == id).map(|(_, token)| token).collect();
    assert_eq!(tokens.len(), 40);
    assert!(tokens.iter().all(|token| allowed.contains(token)));
    assert!(allowed.iter().all(|token| tokens.contains(token)), "each comes up");
}

#[test]
fn steps_take_at_least_what_the_model_says() {
    let cost = CostModel { step: Duration::from_millis(2), ..CostModel::default() };
    let mut engine = engine(cost);
    engine.add(request(1, 30, 20), Box::new(Free)).unwrap();
    let started = Instant::now();
    run(&mut engine);
    assert!(
        started.elapsed() >= Duration::from_millis(40),
        "twenty steps of two milliseconds, one after another"
    );
}
