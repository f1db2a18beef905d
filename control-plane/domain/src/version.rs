//! ModelVersion: one immutable artifact. It is made once and never changes; another artifact is another version.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use weir_schemas::ids::{ModelId, VersionId};

use crate::aggregate::{Aggregate, vacant};
use crate::refusal::{Refusal, Rule};
use crate::validate::{self, ensure};

/// No model has more parameters; keeps the number exact in every JSON reader (2^53).
const PARAMETER_COUNT_MAX: u64 = 1 << 53;
/// Far above any model's context; positions are 32-bit in the engine.
const CONTEXT_LIMIT_MAX: u64 = 1 << 28;
const URI_CHARS_MAX: usize = 4_096;

/// What identifies an artifact and says what it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Where workers read the weights (`file:///…`).
    pub weights_uri: String,
    /// `sha256:…` of the weights.
    pub digest: String,
    /// Storage type of most weights, e.g. `Q4_1`.
    pub dtype: String,
    /// Number of parameters.
    pub parameter_count: u64,
    /// Longest sequence, in tokens.
    pub context_limit: u32,
    /// `sha256:…` of the model text that gateways tokenise with.
    pub tokenizer_digest: String,
}

/// The state of a version.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelVersion {
    /// Its id.
    pub id: VersionId,
    /// The model that it is a version of.
    pub model: ModelId,
    /// What it is.
    pub artifact: Artifact,
    /// When it was made.
    pub created_at: DateTime<Utc>,
}

/// What happened to a version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum VersionEvent {
    /// It was pinned.
    #[serde(rename = "version.created.v1")]
    Created {
        /// Its id.
        id: VersionId,
        /// Its model.
        model: ModelId,
        /// The artifact.
        artifact: Artifact,
        /// When.
        created_at: DateTime<Utc>,
    },
}

/// What may be asked of a version.
#[derive(Debug, Clone, PartialEq)]
pub enum VersionCommand {
    /// Pin an artifact.
    Create {
        /// A fresh id.
        id: VersionId,
        /// Its model.
        model: ModelId,
        /// The artifact.
        artifact: Artifact,
        /// The time.
        now: DateTime<Utc>,
    },
}

impl Aggregate for ModelVersion {
    type Id = VersionId;
    type Command = VersionCommand;
    type Event = VersionEvent;
    const NOUN: &'static str = "version";

    fn decide(current: Option<&Self>, command: VersionCommand) -> Result<Vec<VersionEvent>, Refusal> {
        let VersionCommand::Create { id, model, artifact, now } = command;
        vacant(current)?;
        artifact.check()?;
        Ok(vec![VersionEvent::Created { id, model, artifact, created_at: now }])
    }

    fn evolve(_: Option<Self>, event: &VersionEvent) -> Option<Self> {
        let VersionEvent::Created { id, model, artifact, created_at } = event;
        Some(Self { id: *id, model: *model, artifact: artifact.clone(), created_at: *created_at })
    }
}

impl Artifact {
    fn check(&self) -> Result<(), Refusal> {
        let path = self.weights_uri.strip_prefix("file:///").unwrap_or_default();
        let good =
            !path.is_empty() && path.len() <= URI_CHARS_MAX && !self.weights_uri.contains(char::is_control);
        ensure(good, "weights_uri", Rule::FileUri)?;
        validate::digest("digest", &self.digest)?;
        validate::name("dtype", &self.dtype)?;
        validate::range("parameter_count", self.parameter_count, 1, PARAMETER_COUNT_MAX)?;
        validate::range("context_limit", self.context_limit.into(), 1, CONTEXT_LIMIT_MAX)?;
        validate::digest("tokenizer_digest", &self.tokenizer_digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::check;
    use crate::refusal::invalid;

    fn artifact() -> Artifact {
        Artifact {
            weights_uri: "file:///models/a.gguf".into(),
            digest: format!("sha256:{}", "0".repeat(64)),
            dtype: "Q4_1".into(),
            parameter_count: 134_515_008,
            context_limit: 8_192,
            tokenizer_digest: format!("sha256:{}", "1".repeat(64)),
        }
    }

    fn create(artifact: Artifact) -> VersionCommand {
        VersionCommand::Create {
            id: VersionId::from_u128(1),
            model: ModelId::from_u128(2),
            artifact,
            now: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn an_artifact_is_pinned_once() {
        let created = VersionEvent::Created {
            id: VersionId::from_u128(1),
            model: ModelId::from_u128(2),
            artifact: artifact(),
            created_at: DateTime::UNIX_EPOCH,
        };
        check::<ModelVersion>(&[], create(artifact()), Ok(vec![created.clone()]));
        check::<ModelVersion>(&[created], create(artifact()), Err(Refusal::Exists { noun: "version" }));
    }

    #[test]
    fn an_artifact_that_nobody_could_load_is_refused() {
        let bad = |change: fn(&mut Artifact), field, rule| {
            let mut artifact = artifact();
            change(&mut artifact);
            check::<ModelVersion>(&[], create(artifact), Err(invalid(field, rule)));
        };
        bad(|a| a.weights_uri = "s3://bucket/a".into(), "weights_uri", Rule::FileUri);
        bad(|a| a.weights_uri = "file:///".into(), "weights_uri", Rule::FileUri);
        bad(|a| a.digest = "sha256:00".into(), "digest", Rule::Digest);
        bad(|a| a.context_limit = 0, "context_limit", Rule::Range { min: 1, max: CONTEXT_LIMIT_MAX });
        bad(|a| a.tokenizer_digest.clear(), "tokenizer_digest", Rule::Digest);
    }
}
