//! The body of `/v1/chat/completions` as a [`CompletionRequest`].

use super::message::messages;
use super::parameter::ParameterError;
use super::parameters::{NotYet, Parameters};
use super::sampling::{self, NOT_YET as COMMON_NOT_YET};
use super::{CompletionRequest, Input};

/// What chat has beyond [`COMMON_NOT_YET`] and is not built yet.
const NOT_YET: &[NotYet] = &[
    NotYet { name: "tools", neutral: &["[]"], hint: "" },
    NotYet { name: "tool_choice", neutral: &["\"none\"", "\"auto\""], hint: "" },
    NotYet { name: "parallel_tool_calls", neutral: &["true", "false"], hint: "" },
    NotYet { name: "functions", neutral: &["[]"], hint: "" },
    NotYet { name: "function_call", neutral: &["\"none\"", "\"auto\""], hint: "" },
    NotYet { name: "response_format", neutral: &["{\"type\":\"text\"}"], hint: " except as text" },
    NotYet { name: "logprobs", neutral: &["false"], hint: "" },
    NotYet { name: "top_logprobs", neutral: &["0"], hint: "" },
    NotYet { name: "modalities", neutral: &["[\"text\"]"], hint: " except as text" },
    NotYet { name: "store", neutral: &["false"], hint: "" },
    NotYet { name: "audio", neutral: &[], hint: "" },
    NotYet { name: "prediction", neutral: &[], hint: "" },
    NotYet { name: "reasoning_effort", neutral: &[], hint: "" },
    NotYet { name: "verbosity", neutral: &[], hint: "" },
    NotYet { name: "web_search_options", neutral: &[], hint: "" },
    NotYet { name: "safety_identifier", neutral: &[], hint: "" },
    NotYet { name: "prompt_cache_key", neutral: &[], hint: "; prefixes are cached without it" },
    NotYet { name: "prompt_cache_retention", neutral: &[], hint: "" },
];

pub(crate) fn parse(body: &[u8]) -> Result<CompletionRequest, ParameterError> {
    let mut parameters = Parameters::parse(body)?;
    let common = sampling::common(&mut parameters)?;
    let messages = messages(parameters.require("messages")?)?;
    let old = parameters.take("max_tokens").map(sampling::max_tokens).transpose()?;
    let new = parameters.take("max_completion_tokens").map(sampling::max_tokens).transpose()?;
    if old.is_some() && new.is_some() {
        let message =
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.".into();
        return Err(ParameterError::invalid("max_tokens", message));
    }
    parameters.finish(&[NOT_YET, COMMON_NOT_YET])?;
    Ok(CompletionRequest {
        model: common.model,
        input: Input::Chat(messages),
        max_tokens: old.or(new),
        sampling: common.sampling,
        stop: common.stop,
        stream: common.stream,
        include_usage: common.include_usage,
        tier: common.tier,
        client_request_id: common.client_request_id,
    })
}

#[cfg(test)]
mod tests;
