//! A model's weights: every tensor looked up, checked against the facts and brought into the kernels' form.

use std::collections::HashSet;

use weir_kernels::gguf::GgufFile;
use weir_kernels::quant::dequantize;

use super::facts::{ModelFacts, shortened};
use super::load_error::LoadError;
use super::ops::MatrixLoader;

/// The weights of a Llama model.
#[derive(Debug)]
pub(crate) struct Weights<M> {
    /// `[vocab_size, hidden_dim]`.
    pub(crate) token_embedding: M,
    pub(crate) layers: Vec<LayerWeights<M>>,
    /// `[hidden_dim]`.
    pub(crate) output_norm: Vec<f32>,
    /// `[vocab_size, hidden_dim]`; `None` if the token embedding serves as the output head.
    output: Option<M>,
}

/// One transformer layer. Matrices are `[outputs, inputs]`.
#[derive(Debug)]
pub(crate) struct LayerWeights<M> {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) query: M,
    pub(crate) key: M,
    pub(crate) value: M,
    pub(crate) attention_output: M,
    pub(crate) feed_forward_norm: Vec<f32>,
    pub(crate) gate: M,
    pub(crate) up: M,
    pub(crate) down: M,
}

impl<M> Weights<M> {
    /// Loads all tensors. A tensor that is left over is an error: it would change the model's results (a bias, RoPE
    /// frequency factors, an expert), and ignoring it would give wrong numbers quietly.
    pub(crate) fn load<O: MatrixLoader<Matrix = M>>(
        ops: &O,
        file: &GgufFile,
        facts: &ModelFacts,
    ) -> Result<Self, LoadError> {
        let mut tensors = Tensors { ops, file, used: HashSet::new() };
        let hidden = facts.hidden_dim;
        let vocab = facts.vocab_size as usize;
        let weights = Self {
            token_embedding: tensors.matrix("token_embd.weight", vocab, hidden)?,
            layers: (0..facts.num_layers)
                .map(|layer| tensors.layer(layer, facts))
                .collect::<Result<_, _>>()?,
            output_norm: tensors.vector("output_norm.weight", hidden)?,
            output: match file.tensor("output.weight") {
                Some(_) => Some(tensors.matrix("output.weight", vocab, hidden)?),
                None => None,
            },
        };
        tensors.refuse_leftovers()?;
        Ok(weights)
    }

    /// Weights of this shape without a file: norms of ones, matrices (an output head of its own among them) as `matrix` makes
    /// them from their rows and columns.
    #[cfg(feature = "cuda")]
    pub(crate) fn made<E>(
        facts: &ModelFacts,
        mut matrix: impl FnMut(usize, usize) -> Result<M, E>,
    ) -> Result<Self, E> {
        let (hidden, inner) = (facts.hidden_dim, facts.feed_forward_dim);
        let (vocab, query, kv) = (facts.vocab_size as usize, facts.query_dim(), facts.kv_dim());
        let mut layer = |_| {
            Ok(LayerWeights {
                attention_norm: vec![1.0; hidden],
                query: matrix(query, hidden)?,
                key: matrix(kv, hidden)?,
                value: matrix(kv, hidden)?,
                attention_output: matrix(hidden, query)?,
                feed_forward_norm: vec![1.0; hidden],
                gate: matrix(inner, hidden)?,
                up: matrix(inner, hidden)?,
                down: matrix(hidden, inner)?,
            })
        };
        let layers = (0..facts.num_layers).map(&mut layer).collect::<Result<_, E>>()?;
        Ok(Self {
            token_embedding: matrix(vocab, hidden)?,
            layers,
            output_norm: vec![1.0; hidden],
            output: Some(matrix(vocab, hidden)?),
        })
    }

    /// The output head.
    pub(crate) fn output(&self) -> &M {
        self.output.as_ref().unwrap_or(&self.token_embedding)
    }
}

struct Tensors<'a, O> {
    ops: &'a O,
    file: &'a GgufFile,
    used: HashSet<String>,
}

impl<O: MatrixLoader> Tensors<'_, O> {
    fn layer(&mut self, layer: usize, facts: &ModelFacts) -> Result<LayerWeights<O::Matrix>, LoadError> {
        let (hidden, inner) = (facts.hidden_dim, facts.feed_forward_dim);
        let (query, kv) = (facts.query_dim(), facts.kv_dim());
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        Ok(LayerWeights {
            attention_norm: self.vector(&name("attn_norm"), hidden)?,
            query: self.matrix(&name("attn_q"), query, hidden)?,
            key: self.matrix(&name("attn_k"), kv, hidden)?,
            value: self.matrix(&name("attn_v"), kv, hidden)?,
            attention_output: self.matrix(&name("attn_output"), hidden, query)?,
            feed_forward_norm: self.vector(&name("ffn_norm"), hidden)?,
            gate: self.matrix(&name("ffn_gate"), inner, hidden)?,
            up: self.matrix(&name("ffn_up"), inner, hidden)?,
            down: self.matrix(&name("ffn_down"), hidden, inner)?,
        })
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<O::Matrix, LoadError> {
        let file = self.file;
        let missing = || LoadError::MissingTensor { name: name.to_owned() };
        let (ggml_type, info, bytes) = file.tensor_view(name).ok_or_else(missing)?;
        if info.dimensions.len() != 2 || info.columns() != columns || info.rows() != rows {
            let actual = info.dimensions.clone();
            return Err(LoadError::TensorShape { name: name.to_owned(), expected: [columns, rows], actual });
        }
        self.used.insert(name.to_owned());
        let matrix = self.ops.matrix(ggml_type, bytes, rows, columns);
        matrix.map_err(|reason| LoadError::Kernels { what: format!("tensor `{name}`"), reason })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let missing = || LoadError::MissingTensor { name: name.to_owned() };
        let (ggml_type, info, bytes) = self.file.tensor_view(name).ok_or_else(missing)?;
        if info.dimensions.len() != 1 || info.columns() != len {
            let actual = info.dimensions.clone();
            return Err(LoadError::TensorShape { name: name.to_owned(), expected: [len, 1], actual });
        }
        self.used.insert(name.to_owned());
        let mut values = vec![0.0; len];
        dequantize(ggml_type, bytes, &mut values).map_err(|error| LoadError::Kernels {
            what: format!("tensor `{name}`"),
            reason: error.to_string(),
        })?;
        Ok(values)
    }

    fn refuse_leftovers(&self) -> Result<(), LoadError> {
        match self.file.tensors().iter().find(|tensor| !self.used.contains(&tensor.name)) {
            Some(tensor) => Err(LoadError::UnexpectedTensor { name: shortened(&tensor.name) }),
            None => Ok(()),
        }
    }
}
