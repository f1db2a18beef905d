//! The fixtures, read once.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use weir_text::{ModelText, TextError, TextModel};

#[derive(Deserialize)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
}

#[derive(Deserialize)]
pub(crate) struct Message {
    pub(crate) role: String,
    pub(crate) content: String,
}

#[derive(Deserialize)]
pub(crate) struct Chat {
    pub(crate) messages: Vec<Message>,
    pub(crate) add_generation_prompt: bool,
    pub(crate) rendered: String,
    pub(crate) ids: Vec<u32>,
}

/// `tests/reference/fixtures/tokenizer_*.json`
#[derive(Deserialize)]
pub(crate) struct Reference {
    pub(crate) prepended_bos_id: Option<u32>,
    pub(crate) eos_id: u32,
    pub(crate) vocab_size: usize,
    pub(crate) texts: Vec<Text>,
    pub(crate) chats: Vec<Chat>,
}

/// A model's tokenizer with the tokens that are not needed for the reference texts left out.
#[derive(Deserialize)]
pub(crate) struct Subset {
    pub(crate) original_ids: Vec<u32>,
    pub(crate) model_text: ModelText,
}

pub(crate) fn read(path: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn reference(model: &str) -> Reference {
    let path = format!("../../tests/reference/fixtures/tokenizer_{model}.json");
    serde_json::from_slice(&read(&path)).unwrap()
}

pub(crate) fn smollm2_bytes() -> Vec<u8> {
    read("tests/fixtures/smollm2.model_text.json")
}

pub(crate) static SMOLLM2: LazyLock<Arc<TextModel>> =
    LazyLock::new(|| Arc::new(TextModel::new(ModelText::from_bytes(&smollm2_bytes()).unwrap()).unwrap()));

pub(crate) static GEMMA3: LazyLock<(Arc<TextModel>, Vec<u32>)> = LazyLock::new(|| {
    let subset: Subset = serde_json::from_slice(&read("tests/fixtures/gemma3_subset.json")).unwrap();
    (Arc::new(TextModel::new(subset.model_text).unwrap()), subset.original_ids)
});

/// A small vocabulary with the control tokens that the templates write.
pub(crate) fn small_model(template: &str) -> Result<TextModel, TextError> {
    static SMALL: LazyLock<ModelText> = LazyLock::new(|| {
        let mut data = ModelText::from_bytes(&smollm2_bytes()).unwrap();
        data.tokens.truncate(17 + 256);
        data.token_types.truncate(17 + 256);
        data.merges.truncate(1);
        data
    });
    let mut data = SMALL.clone();
    for name in ["<s>", "</s>", "[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"] {
        data.tokens.push(name.to_owned());
        data.token_types.push(3);
    }
    let id =
        |name: &str| data.tokens.iter().position(|token| token == name).map(|id| u32::try_from(id).unwrap());
    (data.bos_token_id, data.eos_token_id) = (id("<s>"), id("</s>"));
    data.add_bos_token = Some(true);
    data.chat_template = Some(template.to_owned());
    TextModel::new(data)
}
