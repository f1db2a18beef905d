//! How the next token is chosen from logits.

/// What a request asks of the sampler. Plain data, checked by the engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 means greedy: the highest logit, the lowest id on a tie.
    pub temperature: f32,
    /// Keeps the smallest set of most likely tokens whose probabilities add up to this; 1 keeps all.
    pub top_p: f32,
    /// Keeps this many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps tokens at least this fraction as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Noise is a pure function of this and the token's absolute position.
    pub seed: u64,
}
