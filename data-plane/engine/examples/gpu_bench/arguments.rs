//! The command line.

use std::error::Error;
use std::path::PathBuf;

use weir_kernels::quant::GgmlType;

pub(crate) struct Arguments {
    pub(crate) command: Command,
    pub(crate) is_tiny: bool,
}

pub(crate) enum Command {
    Probe,
    Graphs,
    Answers { model: PathBuf, prompts: PathBuf, out: PathBuf },
    Attention,
    Products,
    Tokens { weights: GgmlType },
}

impl Arguments {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let name = words.next().ok_or("a command is missing")?;
        let (mut is_tiny, mut model, mut prompts, mut out, mut weights) = (false, None, None, None, None);
        while let Some(flag) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--tiny" => is_tiny = true,
                "--model" => model = Some(PathBuf::from(value()?)),
                "--prompts" => prompts = Some(PathBuf::from(value()?)),
                "--out" => out = Some(PathBuf::from(value()?)),
                "--weights" => weights = Some(weight_type(&value()?)?),
                _ => return Err(format!("unknown flag {flag}").into()),
            }
        }
        let command = match name.as_str() {
            "probe" => Command::Probe,
            "graphs" => Command::Graphs,
            "answers" => Command::Answers {
                model: model.ok_or("--model is missing")?,
                prompts: prompts.ok_or("--prompts is missing")?,
                out: out.ok_or("--out is missing")?,
            },
            "attention" => Command::Attention,
            "products" => Command::Products,
            "tokens" => Command::Tokens { weights: weights.ok_or("--weights is missing")? },
            _ => return Err(format!("unknown command {name}").into()),
        };
        Ok(Self { command, is_tiny })
    }
}

fn weight_type(name: &str) -> Result<GgmlType, String> {
    match name {
        "bf16" => Ok(GgmlType::BF16),
        "q8_0" => Ok(GgmlType::Q8_0),
        "q4_0" => Ok(GgmlType::Q4_0),
        _ => Err(format!("unknown weights {name}: bf16, q8_0 or q4_0")),
    }
}
