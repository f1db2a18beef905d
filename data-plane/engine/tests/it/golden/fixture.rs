//! The committed fixtures and the model file.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use weir_engine::TokenId;
use weir_engine::executor::cpu::CpuConfig;

const MODEL_FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// `golden.json`, with the logits that lie beside it.
#[derive(Deserialize)]
pub(crate) struct Golden {
    vocab_size: usize,
    /// Every so many-eth logit is kept along the greedy text.
    pub(crate) path_stride: usize,
    pub(crate) prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
pub(crate) struct Prompt {
    pub(crate) name: String,
    pub(crate) ids: Vec<TokenId>,
    /// Of each position of the greedy continuation.
    pub(crate) top2: Vec<Top2>,
    /// Transformers' logits at the prompt's last position.
    #[serde(skip)]
    pub(crate) logits: Vec<f32>,
    /// Every `path_stride`-th of Transformers' logits, for each position of the continuation.
    #[serde(skip)]
    pub(crate) path: Vec<Vec<f32>>,
}

/// Best id, second id, best logit, second logit.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Top2(
    pub(crate) TokenId,
    #[expect(dead_code, reason = "part of the fixture's form")] TokenId,
    pub(crate) f32,
    pub(crate) f32,
);

pub(crate) fn golden() -> Golden {
    let json = std::fs::read(folder().join("golden.json")).unwrap();
    let mut golden: Golden = serde_json::from_slice(&json).unwrap();
    let mut logits = floats("golden_logits.f32").into_iter();
    let mut path = floats("golden_path.f32").into_iter();
    let kept = golden.vocab_size.div_ceil(golden.path_stride);
    for prompt in &mut golden.prompts {
        prompt.logits = logits.by_ref().take(golden.vocab_size).collect();
        prompt.path = prompt.top2.iter().map(|_| path.by_ref().take(kept).collect()).collect();
    }
    assert!(golden.prompts.iter().all(|prompt| prompt.logits.len() == golden.vocab_size));
    assert!(golden.prompts.iter().flat_map(|prompt| &prompt.path).all(|row| row.len() == kept));
    assert!(
        logits.next().is_none() && path.next().is_none(),
        "the files beside golden.json are of another one"
    );
    golden
}

fn floats(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(folder().join(name)).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Where the model file is; a missing one fails the test, for a skipped test proves nothing.
pub(crate) fn model_path() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/models").join(MODEL_FILE);
    assert!(path.exists(), "{} is not there: run `make models` first", path.display());
    path
}

/// Room for every prompt of the fixtures with its continuation, in either KV type.
pub(crate) fn config() -> CpuConfig {
    CpuConfig {
        threads: 2,
        kv_bytes: 256 << 20,
        max_seats: 32,
        max_step_tokens: 256,
        context_limit: Some(1024),
        num_host_pages: 0,
    }
}
