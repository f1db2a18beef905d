//! Parameters that chat and text completions have in common.

use serde_json::value::RawValue;
use weir_schemas::records::Tier;

use super::parameter::{MAX_LABEL_CHARS, Parameter, ParameterError};
use super::parameters::{NotYet, Parameters};
use super::{CompletionRequest, Input, ResponseFormat, SamplingOptions, ToolsAsked};

/// OpenAI's bound.
const MAX_STOP_STRINGS: usize = 4;
/// The detokenizer's bound: what one request may make a worker hold back.
const MAX_STOP_BYTES: usize = 1024;
/// OpenAI's bounds.
const MAX_METADATA_PAIRS: usize = 16;
const MAX_METADATA_KEY_CHARS: usize = 64;

/// OpenAI's bounds.
const MAX_CHOICES: i64 = 128;
const MAX_LOGIT_BIASES: usize = 1024;

/// What [`common`] reads.
#[derive(Debug)]
pub(super) struct Common {
    model: String,
    sampling: SamplingOptions,
    logit_bias: Vec<(u32, f32)>,
    n: u32,
    stop: Vec<String>,
    stream: bool,
    include_usage: bool,
    tier: Tier,
    names_tier: bool,
    client_request_id: Option<String>,
}

impl Common {
    /// With what each endpoint reads for itself.
    pub(super) fn request(
        self,
        input: Input,
        max_tokens: Option<u32>,
        logprobs: Option<u32>,
    ) -> CompletionRequest {
        CompletionRequest {
            model: self.model,
            input,
            tools: ToolsAsked::default(),
            max_tokens,
            sampling: self.sampling,
            logit_bias: self.logit_bias,
            logprobs,
            n: self.n,
            response_format: ResponseFormat::Text,
            stop: self.stop,
            stream: self.stream,
            include_usage: self.include_usage,
            tier: self.tier,
            names_tier: self.names_tier,
            client_request_id: self.client_request_id,
        }
    }
}

pub(super) fn common(parameters: &mut Parameters<'_>) -> Result<Common, ParameterError> {
    let model = parameters.require("model")?.label(MAX_LABEL_CHARS)?;
    if model.is_empty() {
        return Err(ParameterError::missing("model"));
    }
    let stream = match parameters.take("stream") {
        Some(stream) => stream.boolean()?,
        None => false,
    };
    let include_usage = stream_options(parameters, stream)?;
    // Checked, and of no effect: nothing is stored, and prefixes are cached by what they are.
    for name in ["user", "safety_identifier", "prompt_cache_key"] {
        if let Some(label) = parameters.take(name) {
            label.label(MAX_LABEL_CHARS)?;
        }
    }
    if let Some(store) = parameters.take("store") {
        store.boolean()?;
    }
    let (tier, names_tier) = tier(parameters)?;
    Ok(Common {
        model,
        sampling: sampling(parameters)?,
        logit_bias: match parameters.take("logit_bias") {
            Some(bias) => logit_bias(bias)?,
            None => Vec::new(),
        },
        n: match parameters.take("n") {
            Some(n) => u32::try_from(n.integer(1, MAX_CHOICES)?).unwrap_or(1),
            None => 1,
        },
        stop: match parameters.take("stop") {
            Some(stop) => stop_strings(stop)?,
            None => Vec::new(),
        },
        stream,
        include_usage,
        tier,
        names_tier,
        client_request_id: match parameters.take("metadata") {
            Some(metadata) => request_id_of(metadata)?,
            None => None,
        },
    })
}

/// An output cap: at least one token. A cap above the context is the context check's to refuse, with the numbers.
pub(super) fn max_tokens(parameter: Parameter<'_>) -> Result<u32, ParameterError> {
    let value = parameter.integer(1, i64::MAX)?;
    Ok(u32::try_from(value).unwrap_or(u32::MAX))
}

#[expect(clippy::cast_possible_truncation, reason = "the engine samples in f32; ranges were checked")]
fn sampling(parameters: &mut Parameters<'_>) -> Result<SamplingOptions, ParameterError> {
    let mut number = |name: &str, default: f64, min: f64, max: f64| match parameters.take(name) {
        Some(parameter) => parameter.number(min, max),
        None => Ok(default),
    };
    let temperature = number("temperature", 1.0, 0.0, 2.0)? as f32;
    // Zero keeps the likeliest token, as OpenAI does; the engine wants a positive share.
    let top_p = (number("top_p", 1.0, 0.0, 1.0)? as f32).max(f32::MIN_POSITIVE);
    let min_p = number("min_p", 0.0, 0.0, 1.0)? as f32;
    let presence_penalty = number("presence_penalty", 0.0, -2.0, 2.0)? as f32;
    let frequency_penalty = number("frequency_penalty", 0.0, -2.0, 2.0)? as f32;
    // Not OpenAI's: as other servers have it.
    let repetition_penalty = number("repetition_penalty", 1.0, 0.01, 100.0)? as f32;
    let top_k = match parameters.take("top_k") {
        // -1 means off in other servers; 0 does here.
        Some(top_k) => u32::try_from(top_k.integer(-1, i64::from(u32::MAX))?).unwrap_or(0),
        None => 0,
    };
    let seed = match parameters.take("seed") {
        Some(seed) => Some(seed.integer(i64::MIN, i64::MAX)?.cast_unsigned()),
        None => None,
    };
    Ok(SamplingOptions {
        temperature,
        top_p,
        top_k,
        min_p,
        seed,
        presence_penalty,
        frequency_penalty,
        repetition_penalty,
    })
}

/// Token ids, as the names of an object, to what is added to their logits.
fn logit_bias(parameter: Parameter<'_>) -> Result<Vec<(u32, f32)>, ParameterError> {
    const PATH: &str = "logit_bias";
    let mut biases = Vec::new();
    for (token, raw) in nested(parameter)?.entries() {
        if biases.len() == MAX_LOGIT_BIASES {
            let message = format!("Invalid 'logit_bias': at most {MAX_LOGIT_BIASES} tokens are allowed.");
            return Err(ParameterError::invalid(PATH, message));
        }
        let id = token.parse::<u32>().map_err(|_| {
            let message =
                "Invalid 'logit_bias': each name must be a token id, written as a whole number.".into();
            ParameterError::invalid(PATH, message)
        })?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the engine samples in f32; the range was checked"
        )]
        let bias = Parameter { name: PATH, raw }.number(-100.0, 100.0)? as f32;
        biases.push((id, bias));
    }
    Ok(biases)
}

fn stop_strings(parameter: Parameter<'_>) -> Result<Vec<String>, ParameterError> {
    let mut stops = Vec::new();
    match parameter.raw.get().as_bytes()[0] {
        b'"' => stops.push(parameter.string()?),
        b'[' => {
            for raw in bounded_array(parameter, MAX_STOP_STRINGS)? {
                stops.push(Parameter { name: parameter.name, raw }.string()?);
            }
        }
        _ => return Err(parameter.wrong_type("a string or an array of strings")),
    }
    if stops.iter().any(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        let message = format!("Invalid 'stop': each string must have 1 to {MAX_STOP_BYTES} bytes.");
        return Err(ParameterError::invalid("stop", message));
    }
    Ok(stops)
}

fn stream_options(parameters: &mut Parameters<'_>, stream: bool) -> Result<bool, ParameterError> {
    let Some(parameter) = parameters.take("stream_options") else { return Ok(false) };
    if !stream {
        let message = "The 'stream_options' parameter is only allowed when 'stream' is enabled.".into();
        return Err(ParameterError::invalid("stream_options", message));
    }
    let mut options = nested(parameter)?;
    let include_usage = match options.take("include_usage") {
        Some(include) => include.named("stream_options.include_usage").boolean()?,
        None => false,
    };
    options.finish(&[&[NotYet { name: "include_obfuscation", neutral: &["false"], hint: "" }]])?;
    Ok(include_usage)
}

/// With whether it was asked for in OpenAI's words, who then tell it in the answer.
fn tier(parameters: &mut Parameters<'_>) -> Result<(Tier, bool), ParameterError> {
    let mut named = |name: &str| -> Result<Option<Tier>, ParameterError> {
        let Some(parameter) = parameters.take(name) else { return Ok(None) };
        match parameter.string()?.as_str() {
            "interactive" => Ok(Some(Tier::Interactive)),
            "batch" => Ok(Some(Tier::Batch)),
            // OpenAI's own words for "as the project is set up".
            "auto" | "default" | "priority" if name == "service_tier" => Ok(Some(Tier::Interactive)),
            "flex" if name == "service_tier" => Ok(Some(Tier::Batch)),
            _ => {
                let more =
                    if name == "service_tier" { ", 'auto', 'default', 'priority', 'flex'" } else { "" };
                let message = format!(
                    "Invalid value for '{name}'. Supported values are: 'interactive', 'batch'{more}."
                );
                Err(ParameterError::invalid(name, message))
            }
        }
    };
    match (named("priority")?, named("service_tier")?) {
        (Some(a), Some(b)) if a != b => {
            let message = "'priority' and 'service_tier' contradict each other.".into();
            Err(ParameterError::invalid("priority", message))
        }
        (a, b) => Ok((a.or(b).unwrap_or(Tier::Interactive), b.is_some())),
    }
}

fn request_id_of(parameter: Parameter<'_>) -> Result<Option<String>, ParameterError> {
    let pairs = nested(parameter)?;
    let too_many = || {
        let message = format!(
            "Invalid 'metadata': too many properties. At most {MAX_METADATA_PAIRS} pairs of strings are allowed, \
             with keys of at most {MAX_METADATA_KEY_CHARS} characters."
        );
        ParameterError::invalid("metadata", message)
    };
    let mut request_id = None;
    for (at, (key, raw)) in pairs.entries().enumerate() {
        if at == MAX_METADATA_PAIRS || key.chars().count() > MAX_METADATA_KEY_CHARS {
            return Err(too_many());
        }
        let value = Parameter { name: "metadata", raw }.label(MAX_LABEL_CHARS)?;
        if key == "request_id" {
            request_id = Some(value);
        }
    }
    Ok(request_id)
}

/// The names of an object parameter.
pub(super) fn nested<'a>(parameter: Parameter<'a>) -> Result<Parameters<'a>, ParameterError> {
    if !parameter.raw.get().starts_with('{') {
        return Err(parameter.wrong_type("an object"));
    }
    let parsed = Parameters::parse(parameter.raw.get().as_bytes());
    parsed.map(|parameters| parameters.at(parameter.name)).map_err(|_| {
        let message = format!("Invalid '{}': too many names, or a name that stands twice.", parameter.name);
        ParameterError::invalid(parameter.name, message)
    })
}

/// The elements of an array parameter, reading stops at `max`.
pub(super) fn bounded_array<'a>(
    parameter: Parameter<'a>,
    max: usize,
) -> Result<Vec<&'a RawValue>, ParameterError> {
    super::parameters::elements(parameter.raw, max).map_err(|()| {
        let name = parameter.name;
        let message =
            format!("Invalid '{name}': array too long. Expected an array with at most {max} elements.");
        ParameterError::new(name, "array_above_max_length", message)
    })
}
