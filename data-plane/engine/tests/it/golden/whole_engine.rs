//! The engine on the real model: exact greedy answers, and what the prefix cache saves without changing a bit.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use weir_engine::executor::cpu::CpuExecutor;
use weir_engine::{
    Commit, Engine, EngineConfig, Executor, FinishReason, SamplingParams, SequenceEvent, SequenceId,
    SequenceRequest, SequenceUsage, TenantIndex, TokenId, Verdict,
};

use super::fixture::{config, golden, model_path};

const END_OF_SEQUENCE: TokenId = 2;

#[derive(Deserialize)]
struct ChatGreedy {
    max_tokens: u32,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Chat {
    prompt_ids: Vec<TokenId>,
    completion_ids: Vec<TokenId>,
    ended_by_eos: bool,
    margin_min: f32,
}

struct TakeAll;

impl Commit for TakeAll {
    fn commit(&mut self, _: TokenId) -> Verdict {
        Verdict::Continue
    }
}

fn engine() -> Engine<CpuExecutor, TakeAll> {
    let executor = CpuExecutor::load(&model_path(), &config()).unwrap();
    Engine::new(EngineConfig::for_capacity(&executor.capacity()), executor).unwrap()
}

fn request(prompt: &[TokenId], max_tokens: u32, tenant: u8) -> SequenceRequest {
    SequenceRequest {
        stop_tokens: vec![END_OF_SEQUENCE],
        cache_salt: [tenant; 32],
        tenant: TenantIndex(tenant.into()),
        ..SequenceRequest::new(prompt.to_vec(), max_tokens, SamplingParams::GREEDY)
    }
}

/// Steps until nothing is left; tokens and end of each sequence.
fn drain(
    engine: &mut Engine<CpuExecutor, TakeAll>,
) -> HashMap<SequenceId, (Vec<TokenId>, FinishReason, SequenceUsage)> {
    let mut tokens: HashMap<SequenceId, Vec<TokenId>> = HashMap::new();
    let mut finished = HashMap::new();
    while engine.has_work() {
        let mut events = Vec::new();
        engine.step(&mut events).unwrap();
        for event in events {
            match event {
                SequenceEvent::Token { id, token, .. } => tokens.entry(id).or_default().push(token),
                SequenceEvent::Finished { id, reason, usage } => {
                    finished.insert(id, (tokens.remove(&id).unwrap_or_default(), reason, usage));
                }
            }
        }
        engine.check_integrity().unwrap();
    }
    finished
}

/// These chats were kept because no choice on their way is close, so their exact text and length can be demanded of an
/// integer path; the whole-system counts lean on that.
#[test]
fn clear_chats_are_answered_exactly_as_transformers_answers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/fixtures/chat_greedy.json");
    let fixture: ChatGreedy = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let clear: Vec<_> =
        fixture.chats.into_iter().filter(|chat| chat.ended_by_eos && chat.margin_min >= 0.5).collect();
    assert!(clear.len() >= 20, "only {} clear chats", clear.len());
    let mut engine = engine();
    let ids: Vec<_> = clear
        .iter()
        .map(|chat| engine.add(request(&chat.prompt_ids, fixture.max_tokens, 1), TakeAll).unwrap())
        .collect();
    let mut finished = drain(&mut engine);
    for (id, chat) in ids.into_iter().zip(&clear) {
        let (tokens, reason, usage) = finished.remove(&id).unwrap();
        assert_eq!(tokens, chat.completion_ids);
        assert_eq!(reason, FinishReason::Stop);
        assert_eq!(usage.generated_tokens as usize, chat.completion_ids.len());
        assert_eq!(usage.prompt_tokens as usize, chat.prompt_ids.len());
    }
}

/// Computes a prompt to its first token; its usage and the logits that token was chosen from.
fn first_token(
    engine: &mut Engine<CpuExecutor, TakeAll>,
    prompt: &[TokenId],
    tenant: u8,
) -> (SequenceUsage, Vec<f32>, u64) {
    let before = engine.counters().prefill_tokens;
    engine.add(request(prompt, 1, tenant), TakeAll).unwrap();
    let mut finished = drain(engine);
    let (_, _, usage) = finished.drain().next().unwrap().1;
    (usage, engine.executor().logits(0).to_vec(), engine.counters().prefill_tokens - before)
}

#[test]
fn a_shared_prefix_is_computed_once_a_tenant_and_changes_no_bit() {
    let prompts = golden().prompts;
    let system = &prompts.iter().find(|prompt| prompt.name == "prose").unwrap().ids;
    let with = |name: &str| {
        let question = &prompts.iter().find(|prompt| prompt.name == name).unwrap().ids;
        system.iter().chain(question).copied().collect::<Vec<_>>()
    };
    let (first, second) = (with("capital"), with("french"));
    let (_, cold, cold_computed) = first_token(&mut engine(), &second, 1);
    assert_eq!(cold_computed as usize, second.len());

    let mut engine = engine();
    let (usage, _, computed) = first_token(&mut engine, &first, 1);
    assert_eq!((usage.cached_prompt_tokens, computed as usize), (0, first.len()));
    // Every whole block of the shared part, and nothing of the block in which the prompts part ways.
    let shared = first.iter().zip(&second).take_while(|(a, b)| a == b).count() / 16 * 16;
    assert!(shared >= 10 * 16);
    let (usage, warm, computed) = first_token(&mut engine, &second, 1);
    assert_eq!(usage.cached_prompt_tokens as usize, shared);
    assert_eq!(computed as usize, second.len() - shared);
    assert_eq!(
        warm.iter().map(|l| l.to_bits()).collect::<Vec<_>>(),
        cold.iter().map(|l| l.to_bits()).collect::<Vec<_>>()
    );

    let (usage, other, computed) = first_token(&mut engine, &second, 2);
    assert_eq!((usage.cached_prompt_tokens, computed as usize), (0, second.len()));
    assert_eq!(other, cold);
}
