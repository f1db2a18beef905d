//! The body of `/v1/chat/completions` as a [`CompletionRequest`].

use super::message::messages;
use super::parameter::ParameterError;
use super::parameters::{NotYet, Parameters};
use super::sampling;
use super::{CompletionRequest, Input, response_format, tools};

/// OpenAI's bound.
const MAX_TOP_LOGPROBS: i64 = 20;

/// What is not built yet.
const NOT_YET: &[NotYet] = &[
    NotYet { name: "functions", neutral: &["[]"], hint: "; use 'tools'" },
    NotYet { name: "function_call", neutral: &["\"none\"", "\"auto\""], hint: "; use 'tool_choice'" },
    NotYet { name: "modalities", neutral: &["[\"text\"]"], hint: " except as text" },
    NotYet { name: "audio", neutral: &[], hint: "" },
    NotYet { name: "prediction", neutral: &[], hint: "" },
    NotYet { name: "reasoning_effort", neutral: &[], hint: "" },
    NotYet { name: "verbosity", neutral: &[], hint: "" },
    NotYet { name: "web_search_options", neutral: &[], hint: "" },
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
    let logprobs = logprobs(&mut parameters)?;
    let format = parameters.take("response_format").map(response_format::response_format).transpose()?;
    let tools = tools::tools(&mut parameters)?;
    parameters.finish(&[NOT_YET])?;
    let mut request = common.request(Input::Chat(messages), old.or(new), logprobs);
    request.response_format = format.unwrap_or(request.response_format);
    request.tools = tools;
    response_format::check_told_of_json(&request.response_format, &request.input)?;
    Ok(request)
}

fn logprobs(parameters: &mut Parameters<'_>) -> Result<Option<u32>, ParameterError> {
    let asked = parameters.take("logprobs").map(|asked| asked.boolean()).transpose()?.unwrap_or(false);
    let top = match parameters.take("top_logprobs") {
        Some(top) => u32::try_from(top.integer(0, MAX_TOP_LOGPROBS)?).unwrap_or(0),
        None => return Ok(asked.then_some(0)),
    };
    if !asked && top > 0 {
        let message = "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.".into();
        return Err(ParameterError::invalid("top_logprobs", message));
    }
    Ok(asked.then_some(top))
}

#[cfg(test)]
mod tests;
