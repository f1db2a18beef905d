//! The requests: chats of 128 tokens as SmolLM2 counts them, no two alike, so that nobody has seen one before.

use std::time::{Duration, Instant};

use serde_json::json;
use weir_text::{ChatMessage, ModelText, TextModel};

/// What a worker gives its gateways of SmolLM2-135M-Instruct; the pinned version names its digest.
pub(crate) const MODEL_TEXT: &[u8] =
    include_bytes!("../../../data-plane/text/tests/fixtures/smollm2.model_text.json");
/// As the model's chat template renders them, its own words included.
pub(crate) const PROMPT_TOKENS: usize = 128;
/// Words to fill a prompt with; more than are wanted.
const WORDS: &str = "Ships that leave the harbour before dawn carry letters, tools and seed for the islands, where \
    people wait at the pier for news of their families and for the price of wool. Describe in plain words what the \
    crew does between the two lighthouses when the wind turns north, who keeps watch, how the cargo is held, what \
    they eat, and why the oldest of them will not sail on the first day of a month, whatever the captain says. Then \
    tell what becomes of the letters that nobody asks for, and of the dog.";
/// Rounds and prompts of the tokeniser's measurement.
const MEASURED: (usize, u64) = (5, 1000);

/// Makes requests.
#[derive(Debug)]
pub(crate) struct Prompts {
    text: TextModel,
    /// So many of [`WORDS`].
    filling: String,
}

/// What one prompt costs on one core.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptCost {
    /// The chat template.
    pub(crate) render: Duration,
    /// From the rendered text to tokens.
    pub(crate) tokenise: Duration,
}

impl Prompts {
    pub(crate) fn new() -> Self {
        let text = TextModel::new(ModelText::from_bytes(MODEL_TEXT).unwrap()).unwrap();
        let words: Vec<&str> = WORDS.split(' ').collect();
        let mut prompts = Self { text, filling: String::new() };
        let fits = (0..words.len()).any(|count| {
            prompts.filling = words[..count].join(" ");
            prompts.tokens(0) == PROMPT_TOKENS
        });
        assert!(fits, "no number of words makes {PROMPT_TOKENS} tokens");
        assert_eq!(prompts.tokens(98_765_432), PROMPT_TOKENS, "every number has as many tokens");
        prompts
    }

    /// A streamed chat completion of so many tokens.
    pub(crate) fn body(&self, model: &str, number: u64, max_tokens: u32) -> Vec<u8> {
        let body = json!({
            "model": model,
            "messages": [{"role": "user", "content": self.content(number)}],
            "max_tokens": max_tokens,
            "temperature": 0.7,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        serde_json::to_vec(&body).unwrap()
    }

    /// The quickest of a few rounds, each over many prompts.
    pub(crate) fn cost(&self) -> PromptCost {
        let (rounds, prompts) = MEASURED;
        let per_prompt = |time: Duration| time / u32::try_from(prompts).unwrap();
        let rounds = (0..rounds).map(|round| {
            let numbers = (0..prompts).map(|number| number + prompts * round as u64);
            let messages: Vec<_> = numbers.map(|number| self.messages(number)).collect();
            let start = Instant::now();
            let rendered: Vec<_> = messages
                .iter()
                .map(|messages| self.text.render_chat_at(messages, &[], true, None).unwrap())
                .collect();
            let between = Instant::now();
            for rendered in &rendered {
                std::hint::black_box(self.text.encode_rendered(rendered).unwrap());
            }
            (per_prompt(between - start), per_prompt(between.elapsed()))
        });
        let (render, tokenise): (Vec<_>, Vec<_>) = rounds.unzip();
        let least = |times: Vec<Duration>| times.into_iter().min().unwrap();
        PromptCost { render: least(render), tokenise: least(tokenise) }
    }

    fn tokens(&self, number: u64) -> usize {
        let rendered = self.text.render_chat_at(&self.messages(number), &[], true, None).unwrap();
        self.text.encode_rendered(&rendered).unwrap().len()
    }

    fn messages(&self, number: u64) -> [ChatMessage; 1] {
        [ChatMessage::new("user", &self.content(number))]
    }

    fn content(&self, number: u64) -> String {
        format!("{number:08}: {}", self.filling)
    }
}
