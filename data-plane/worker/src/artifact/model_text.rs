//! The plain data that gateways tokenise with, copied out of the weight file's metadata.

use std::path::Path;

use weir_engine::model::{ModelFile, TokenizerMetadata};
use weir_text::ModelText;

use super::ArtifactError;

/// Copies tokenizer and chat template; nothing is interpreted here.
pub(crate) fn extract(file: &ModelFile, path: &Path) -> Result<ModelText, ArtifactError> {
    let metadata = file
        .tokenizer_metadata()
        .map_err(|source| ArtifactError::Model { path: path.display().to_string(), source })?;
    Ok(convert(metadata))
}

fn convert(metadata: TokenizerMetadata) -> ModelText {
    // `add_eos_token` is left out on purpose: an end-of-sequence token after a prompt would end the answer.
    let TokenizerMetadata {
        model,
        pre_tokenizer,
        tokens,
        token_types,
        scores,
        merges,
        bos_token_id,
        eos_token_id,
        eot_token_id,
        eom_token_id,
        unknown_token_id,
        padding_token_id,
        add_bos_token,
        add_eos_token: _,
        add_space_prefix,
        chat_template,
    } = metadata;
    ModelText {
        tokenizer_model: model,
        pre_tokenizer,
        tokens,
        token_types,
        scores,
        merges,
        bos_token_id,
        eos_token_id,
        eot_token_id,
        eom_token_id,
        unknown_token_id,
        padding_token_id,
        add_bos_token,
        add_space_prefix,
        chat_template,
    }
}
