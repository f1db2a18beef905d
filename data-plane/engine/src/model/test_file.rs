//! Writes small GGUF files for tests: a whole Llama model, or a broken one.

/// One metadata value.
#[derive(Clone)]
pub(super) enum Entry {
    U32(u32),
    F32(f32),
    Text(&'static str),
    Texts(Vec<String>),
}

/// The numbers of a Llama model.
pub(super) struct Shape {
    pub(super) layers: u32,
    pub(super) hidden: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) inner: u32,
    pub(super) vocab: u32,
    pub(super) context: u32,
}

/// A file in the making. Tensors are F32.
#[derive(Clone)]
pub(super) struct TestFile {
    pub(super) metadata: Vec<(&'static str, Entry)>,
    pub(super) tensors: Vec<(String, Vec<u64>)>,
    /// Largest component of a matrix.
    pub(super) largest: f32,
}

impl TestFile {
    /// Two layers, two query heads over one KV head of 16 components, eight tokens, an output head of its own.
    pub(super) fn llama() -> Self {
        Self::llama_of(&Shape {
            layers: 2,
            hidden: 32,
            heads: 2,
            kv_heads: 1,
            inner: 48,
            vocab: 8,
            context: 64,
        })
    }

    /// A model of this shape. The first layers of a deeper one are those of a shallower one.
    pub(super) fn llama_of(shape: &Shape) -> Self {
        let &Shape { layers, hidden, heads, kv_heads, inner, vocab, context } = shape;
        let tokens =
            (0..vocab).map(|token| char::from_u32('a' as u32 + token).unwrap().to_string()).collect();
        let metadata = vec![
            ("general.architecture", Entry::Text("llama")),
            ("llama.block_count", Entry::U32(layers)),
            ("llama.context_length", Entry::U32(context)),
            ("llama.embedding_length", Entry::U32(hidden)),
            ("llama.feed_forward_length", Entry::U32(inner)),
            ("llama.attention.head_count", Entry::U32(heads)),
            ("llama.attention.head_count_kv", Entry::U32(kv_heads)),
            ("llama.attention.layer_norm_rms_epsilon", Entry::F32(1e-5)),
            ("llama.rope.freq_base", Entry::F32(10_000.0)),
            ("tokenizer.ggml.model", Entry::Text("gpt2")),
            ("tokenizer.ggml.tokens", Entry::Texts(tokens)),
        ];
        let [hidden, inner, vocab] = [hidden, inner, vocab].map(u64::from);
        let kv = hidden / u64::from(heads) * u64::from(kv_heads);
        let mut tensors = vec![
            ("token_embd.weight".to_owned(), vec![hidden, vocab]),
            ("output_norm.weight".to_owned(), vec![hidden]),
            ("output.weight".to_owned(), vec![hidden, vocab]),
        ];
        for layer in 0..layers {
            for (part, dimensions) in [
                ("attn_norm", vec![hidden]),
                ("attn_q", vec![hidden, hidden]),
                ("attn_k", vec![hidden, kv]),
                ("attn_v", vec![hidden, kv]),
                ("attn_output", vec![hidden, hidden]),
                ("ffn_norm", vec![hidden]),
                ("ffn_gate", vec![hidden, inner]),
                ("ffn_up", vec![hidden, inner]),
                ("ffn_down", vec![inner, hidden]),
            ] {
                tensors.push((format!("blk.{layer}.{part}.weight"), dimensions));
            }
        }
        Self { metadata, tensors, largest: 1.0 }
    }

    /// Replaces a key, or adds it.
    pub(super) fn with(mut self, key: &'static str, entry: Entry) -> Self {
        self.metadata.retain(|(name, _)| *name != key);
        self.metadata.push((key, entry));
        self
    }

    pub(super) fn without(mut self, key: &str) -> Self {
        self.metadata.retain(|(name, _)| *name != key);
        self
    }

    /// Replaces a tensor's shape, or adds the tensor.
    pub(super) fn with_tensor(mut self, name: &str, dimensions: &[u64]) -> Self {
        self = self.without_tensor(name);
        self.tensors.push((name.to_owned(), dimensions.to_vec()));
        self
    }

    pub(super) fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|(tensor, _)| tensor != name);
        self
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, entry) in &self.metadata {
            text(&mut out, key);
            entry.write(&mut out);
        }
        let mut offset = 0_u64;
        for (name, dimensions) in &self.tensors {
            text(&mut out, name);
            out.extend(u32::try_from(dimensions.len()).unwrap().to_le_bytes());
            dimensions.iter().for_each(|dimension| out.extend(dimension.to_le_bytes()));
            out.extend(0_u32.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += (4 * dimensions.iter().product::<u64>()).next_multiple_of(32);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        // Small numbers of both signs, the same in every run.
        let mut state = 1_u32;
        for (_, dimensions) in &self.tensors {
            let largest = if dimensions.len() > 1 { self.largest } else { 1.0 };
            for _ in 0..dimensions.iter().product::<u64>().next_multiple_of(8) {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                out.extend((largest * (f32::from((state >> 20) as u16) / 2048.0 - 1.0)).to_le_bytes());
            }
        }
        out
    }
}

impl Entry {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::U32(value) => {
                out.extend(4_u32.to_le_bytes());
                out.extend(value.to_le_bytes());
            }
            Self::F32(value) => {
                out.extend(6_u32.to_le_bytes());
                out.extend(value.to_le_bytes());
            }
            Self::Text(value) => {
                out.extend(8_u32.to_le_bytes());
                text(out, value);
            }
            Self::Texts(values) => {
                out.extend(9_u32.to_le_bytes());
                out.extend(8_u32.to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| text(out, value));
            }
        }
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
