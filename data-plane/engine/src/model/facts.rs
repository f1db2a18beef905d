//! What a weight file says about its model, checked.

use std::collections::HashMap;

use weir_kernels::gguf::{GgufFile, Metadata};

use super::load_error::LoadError;

/// The deepest known dense models have some 130 layers.
const LAYERS_MAX: u64 = 1024;
/// Ten times the longest context that is served anywhere; keeps every later product inside 64 bits.
const CONTEXT_MAX: u64 = 16 << 20;
/// Heads beyond this are a broken file.
const HEADS_MAX: u64 = 4096;

/// Shape and provenance of a model. Plain data.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFacts {
    /// `general.architecture`; only `llama` loads.
    pub architecture: String,
    /// `general.name`, for people.
    pub name: Option<String>,
    /// Storage type of most parameters, as GGML names it (`Q4_1`).
    pub dtype: String,
    /// Elements over all tensors.
    pub parameter_count: u64,
    /// Positions that the model was trained for.
    pub context_limit: u32,
    /// Transformer layers.
    pub num_layers: usize,
    /// Components of the residual stream.
    pub hidden_dim: usize,
    /// Components of the feed-forward layer's inside.
    pub feed_forward_dim: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Components of a head.
    pub head_dim: usize,
    /// Token ids are `0..vocab_size`.
    pub vocab_size: u32,
    /// Added to the mean square in RMSNorm.
    pub rms_epsilon: f32,
    /// Base of RoPE's frequencies.
    pub rope_base: f32,
}

impl ModelFacts {
    /// Reads and checks the facts of an open file.
    ///
    /// # Errors
    /// [`LoadError`] for another architecture, missing keys, and values that are impossible or not implemented.
    pub(crate) fn read(file: &GgufFile) -> Result<Self, LoadError> {
        let metadata = file.metadata();
        let architecture = metadata.text("general.architecture")?;
        if architecture != "llama" {
            return Err(LoadError::Architecture { found: shortened(architecture) });
        }
        refuse_unimplemented(metadata)?;
        let num_layers = count(metadata, "llama.block_count", LAYERS_MAX)?;
        let hidden_dim = count(metadata, "llama.embedding_length", u64::from(u32::MAX))?;
        let num_heads = count(metadata, "llama.attention.head_count", HEADS_MAX)?;
        let num_kv_heads = match metadata.get("llama.attention.head_count_kv") {
            Some(_) => count(metadata, "llama.attention.head_count_kv", HEADS_MAX)?,
            None => num_heads,
        };
        let facts = Self {
            architecture: architecture.to_owned(),
            name: metadata.text("general.name").ok().map(str::to_owned),
            dtype: main_type(file),
            parameter_count: file.tensors().iter().map(|tensor| tensor.num_elements() as u64).sum(),
            context_limit: narrow(count(metadata, "llama.context_length", CONTEXT_MAX)?),
            num_layers,
            hidden_dim,
            feed_forward_dim: count(metadata, "llama.feed_forward_length", u64::from(u32::MAX))?,
            num_heads,
            num_kv_heads,
            head_dim: head_dim(metadata, hidden_dim, num_heads)?,
            vocab_size: vocab_size(file)?,
            rms_epsilon: positive(metadata, "llama.attention.layer_norm_rms_epsilon")?,
            rope_base: match metadata.get("llama.rope.freq_base") {
                Some(_) => positive(metadata, "llama.rope.freq_base")?,
                None => 10_000.0,
            },
        };
        if !num_heads.is_multiple_of(num_kv_heads) {
            let value = num_kv_heads.to_string();
            return Err(unsupported(
                "llama.attention.head_count_kv",
                value,
                "query heads are not a multiple of it",
            ));
        }
        Ok(facts)
    }

    /// Components of all query heads together.
    pub fn query_dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Components of all key (or value) heads together.
    pub fn kv_dim(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }
}

/// Keys whose presence changes the arithmetic in ways that are not implemented.
fn refuse_unimplemented(metadata: &Metadata) -> Result<(), LoadError> {
    let scaling = "llama.rope.scaling.type";
    if let Ok(kind) = metadata.text(scaling)
        && kind != "none"
    {
        return Err(unsupported(scaling, shortened(kind), "RoPE scaling is not implemented"));
    }
    for (key, reason) in [
        ("llama.expert_count", "mixtures of experts are not implemented"),
        ("llama.attention.sliding_window", "sliding windows are not implemented"),
    ] {
        if let Ok(value) = metadata.unsigned(key)
            && value > 0
        {
            return Err(unsupported(key, value.to_string(), reason));
        }
    }
    Ok(())
}

fn head_dim(metadata: &Metadata, hidden_dim: usize, num_heads: usize) -> Result<usize, LoadError> {
    let key = "llama.attention.key_length";
    let head_dim = match metadata.get(key) {
        Some(_) => count(metadata, key, u64::from(u16::MAX))?,
        None if hidden_dim.is_multiple_of(num_heads) => hidden_dim / num_heads,
        None => {
            let value = num_heads.to_string();
            return Err(unsupported(
                "llama.attention.head_count",
                value,
                "the embedding length is not a multiple of it",
            ));
        }
    };
    if !head_dim.is_multiple_of(16) {
        return Err(unsupported(key, head_dim.to_string(), "heads must be a multiple of 16 components"));
    }
    for key in ["llama.attention.value_length", "llama.rope.dimension_count"] {
        if let Ok(value) = metadata.unsigned(key)
            && value != head_dim as u64
        {
            return Err(unsupported(key, value.to_string(), "it differs from the length of a head's keys"));
        }
    }
    Ok(head_dim)
}

fn vocab_size(file: &GgufFile) -> Result<u32, LoadError> {
    let name = "token_embd.weight";
    let rows = file.tensor(name).ok_or_else(|| LoadError::MissingTensor { name: name.to_owned() })?.rows();
    let metadata = file.metadata();
    let tokens = metadata.texts("tokenizer.ggml.tokens").ok().map(|tokens| tokens.len() as u64);
    for (key, value) in
        [("llama.vocab_size", metadata.unsigned("llama.vocab_size").ok()), ("tokenizer.ggml.tokens", tokens)]
    {
        if let Some(value) = value
            && value != rows as u64
        {
            return Err(unsupported(
                key,
                value.to_string(),
                "the token embedding has another number of rows",
            ));
        }
    }
    u32::try_from(rows)
        .map_err(|_| unsupported("token_embd.weight", rows.to_string(), "more rows than token ids"))
}

fn main_type(file: &GgufFile) -> String {
    let mut elements = HashMap::<String, usize>::new();
    for tensor in file.tensors() {
        *elements.entry(format!("{:?}", tensor.ggml_type)).or_default() += tensor.num_elements();
    }
    elements
        .into_iter()
        .max_by(|a, b| a.1.cmp(&b.1).then_with(|| a.0.cmp(&b.0)))
        .map_or_else(String::new, |most| most.0)
}

fn count(metadata: &Metadata, key: &str, limit: u64) -> Result<usize, LoadError> {
    let value = metadata.unsigned(key)?;
    if value == 0 || value > limit {
        return Err(unsupported(key, value.to_string(), "it is zero or beyond every known model"));
    }
    usize::try_from(value).map_err(|_| unsupported(key, value.to_string(), "it does not fit this machine"))
}

fn positive(metadata: &Metadata, key: &str) -> Result<f32, LoadError> {
    let value = metadata.f32(key)?;
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(unsupported(key, value.to_string(), "it is not a positive number"))
    }
}

fn narrow(value: usize) -> u32 {
    u32::try_from(value).expect("checked against a limit below 2^32")
}

fn unsupported(key: &str, value: String, reason: &'static str) -> LoadError {
    LoadError::Unsupported { key: key.to_owned(), value, reason }
}

/// A text from the file, short enough for a message.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}
