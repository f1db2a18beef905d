//! Log-probabilities in the shapes of both endpoints. A token that shows nothing (the one that ends a turn) has none.

use std::collections::BTreeMap;

use serde::Serialize;
use weir_schemas::rpc::worker::TokenLogprob;
use weir_text::TextModel;

/// JSON has no infinity: OpenAI's stand-in for a probability of zero.
const LEAST: f32 = -9999.0;

/// `choices[].logprobs` of a chat.
#[derive(Debug, Default, Serialize)]
pub(super) struct ChatLogprobs {
    pub(super) content: Vec<ChatLogprob>,
    refusal: Option<()>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatLogprob {
    #[serde(flatten)]
    of: TokenText,
    top_logprobs: Vec<TokenText>,
}

#[derive(Debug, Serialize)]
struct TokenText {
    token: String,
    logprob: f32,
    /// The token's own bytes: a character may take several tokens.
    bytes: Vec<u8>,
}

/// `choices[].logprobs` of a text completion.
#[derive(Debug, Default, Serialize)]
pub(super) struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Where each token begins in the answer, in characters.
    text_offset: Vec<usize>,
}

pub(super) fn chat(text: &TextModel, tokens: &[TokenLogprob]) -> ChatLogprobs {
    let shown = tokens.iter().filter(|of| !text.token_bytes(of.token).is_empty());
    let content = shown.map(|of| ChatLogprob {
        of: TokenText::new(text, of.token, of.logprob),
        top_logprobs: top(of).map(|(token, logprob)| TokenText::new(text, token, logprob)).collect(),
    });
    ChatLogprobs { content: content.collect(), refusal: None }
}

/// `offset`: characters of the answer before these tokens; moved on past them.
pub(super) fn completion(text: &TextModel, tokens: &[TokenLogprob], offset: &mut usize) -> TextLogprobs {
    let mut logprobs = TextLogprobs::default();
    for of in tokens.iter().filter(|of| !text.token_bytes(of.token).is_empty()) {
        let token = name(text, of.token);
        logprobs.text_offset.push(*offset);
        *offset += token.chars().count();
        logprobs.tokens.push(token);
        logprobs.token_logprobs.push(of.logprob.max(LEAST));
        let mut all: BTreeMap<_, _> =
            top(of).map(|(token, logprob)| (name(text, token), logprob.max(LEAST))).collect();
        // The chosen one is always among them.
        all.insert(name(text, of.token), of.logprob.max(LEAST));
        logprobs.top_logprobs.push(all);
    }
    logprobs
}

impl TokenText {
    fn new(text: &TextModel, token: u32, logprob: f32) -> Self {
        let bytes = text.token_bytes(token).to_vec();
        Self { token: name(text, token), logprob: logprob.max(LEAST), bytes }
    }
}

fn top(of: &TokenLogprob) -> impl Iterator<Item = (u32, f32)> {
    of.top_tokens.iter().copied().zip(of.top_logprobs.iter().copied())
}

/// A token as text; a part of a character in it is U+FFFD.
fn name(text: &TextModel, token: u32) -> String {
    String::from_utf8_lossy(text.token_bytes(token)).into_owned()
}
