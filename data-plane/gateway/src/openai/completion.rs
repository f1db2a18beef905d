//! The body of `/v1/completions` as a [`CompletionRequest`].

use super::parameter::{Parameter, ParameterError};
use super::parameters::{NotYet, Parameters};
use super::sampling::{self, bounded_array};
use super::{CompletionRequest, Input};

/// OpenAI's default for this endpoint.
const DEFAULT_MAX_TOKENS: u32 = 16;
/// Tokens of a prompt given as ids: above every context there is, so that the context check gives the answer.
const MAX_PROMPT_IDS: usize = 1 << 20;

/// OpenAI's bound.
const MAX_LOGPROBS: i64 = 5;

/// What is not built yet.
const NOT_YET: &[NotYet] = &[
    NotYet { name: "best_of", neutral: &["1"], hint: "; only 1 choice is" },
    NotYet { name: "echo", neutral: &["false"], hint: "" },
    NotYet { name: "suffix", neutral: &["\"\""], hint: "" },
];

pub(crate) fn parse(body: &[u8]) -> Result<CompletionRequest, ParameterError> {
    let mut parameters = Parameters::parse(body)?;
    let common = sampling::common(&mut parameters)?;
    let input = prompt(parameters.require("prompt")?)?;
    let max_tokens = parameters.take("max_tokens").map(sampling::max_tokens).transpose()?;
    let logprobs = match parameters.take("logprobs") {
        Some(logprobs) => Some(u32::try_from(logprobs.integer(0, MAX_LOGPROBS)?).unwrap_or(0)),
        None => None,
    };
    parameters.finish(&[NOT_YET])?;
    Ok(common.request(input, Some(max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)), logprobs))
}

/// A string, token ids, or an array of exactly one of either.
fn prompt(parameter: Parameter<'_>) -> Result<Input, ParameterError> {
    const EXPECTED: &str = "a string, an array of token ids, or an array of one of either";
    match parameter.raw.get().as_bytes()[0] {
        b'"' => Ok(Input::Text(parameter.string()?)),
        b'[' => {
            let elements = bounded_array(parameter, MAX_PROMPT_IDS)?;
            let first = elements.first().map(|raw| raw.get().as_bytes()[0]);
            match first {
                None => Err(ParameterError::new(
                    "prompt",
                    "empty_array",
                    "Invalid 'prompt': empty array. Expected at least one token.".into(),
                )),
                Some(b'"' | b'[') if elements.len() > 1 => {
                    Err(ParameterError::unsupported("prompt", " with more than one prompt"))
                }
                Some(b'"') => Ok(Input::Text(Parameter { raw: elements[0], ..parameter }.string()?)),
                Some(b'[') => token_ids(Parameter { raw: elements[0], ..parameter }),
                Some(b'-' | b'0'..=b'9') => token_ids(parameter),
                Some(_) => Err(parameter.wrong_type(EXPECTED)),
            }
        }
        _ => Err(parameter.wrong_type(EXPECTED)),
    }
}

fn token_ids(parameter: Parameter<'_>) -> Result<Input, ParameterError> {
    let ids = bounded_array(parameter, MAX_PROMPT_IDS)?.into_iter().map(|raw| {
        let id = Parameter { raw, ..parameter }.integer(0, i64::from(u32::MAX))?;
        Ok(u32::try_from(id).unwrap_or(u32::MAX))
    });
    ids.collect::<Result<_, _>>().map(Input::Tokens)
}
