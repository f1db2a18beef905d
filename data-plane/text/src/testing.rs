//! Small models for unit tests. Real ones are in `tests/it`.

use crate::byte_level::spelling_of;
use crate::model_text::ModelText;

pub(crate) const UNK: u32 = 0;
pub(crate) const BOS: u32 = 1;
pub(crate) const EOS: u32 = 2;
/// `<|im_start|>` and `<|im_end|>`
pub(crate) const IM_START: u32 = 3;
pub(crate) const IM_END: u32 = 4;
const SPECIAL: [(&str, i32); 5] =
    [("<unk>", 2), ("<bos>", 3), ("<eos>", 3), ("<|im_start|>", 3), ("<|im_end|>", 3)];

fn empty() -> ModelText {
    ModelText {
        tokenizer_model: String::new(),
        pre_tokenizer: None,
        tokens: SPECIAL.iter().map(|token| token.0.to_owned()).collect(),
        token_types: SPECIAL.iter().map(|token| token.1).collect(),
        scores: vec![],
        merges: vec![],
        bos_token_id: Some(BOS),
        eos_token_id: Some(EOS),
        eot_token_id: None,
        eom_token_id: None,
        unknown_token_id: Some(UNK),
        padding_token_id: None,
        add_bos_token: None,
        add_space_prefix: None,
        chat_template: None,
    }
}

/// Every byte, then `tokens` in GPT-2's spelling, with the merges that make each from its characters, left to right.
pub(crate) fn byte_level(tokens: &[&str], chat_template: Option<&str>) -> ModelText {
    let mut data = empty();
    data.tokenizer_model = "gpt2".to_owned();
    data.pre_tokenizer = Some("smollm".to_owned());
    data.chat_template = chat_template.map(str::to_owned);
    data.tokens.extend((0..=255).map(|byte| spelling_of(byte).to_string()));
    for token in tokens {
        let ends: Vec<usize> = token.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
        for pair in ends.windows(2) {
            let rule = format!("{} {}", &token[..pair[0]], &token[pair[0]..pair[1]]);
            if !data.merges.contains(&rule) {
                data.merges.push(rule);
                data.tokens.push(token[..pair[1]].to_owned());
            }
        }
    }
    data.token_types.resize(data.tokens.len(), 1);
    data
}

/// Every byte as `<0x..>`, then `tokens` with their scores.
pub(crate) fn sentencepiece(tokens: &[(&str, f32)], chat_template: Option<&str>) -> ModelText {
    let mut data = empty();
    data.tokenizer_model = "llama".to_owned();
    data.chat_template = chat_template.map(str::to_owned);
    data.tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    data.token_types.resize(data.tokens.len(), 6);
    data.scores.resize(data.tokens.len(), 0.0);
    for &(token, score) in tokens {
        data.tokens.push(token.to_owned());
        data.scores.push(score);
    }
    data.token_types.resize(data.tokens.len(), 1);
    data
}
