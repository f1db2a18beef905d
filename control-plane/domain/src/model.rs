//! Model: the family that pinned versions belong to. A name and nothing that could change what is served.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use weir_schemas::ids::ModelId;

use crate::aggregate::{Aggregate, vacant};
use crate::refusal::Refusal;
use crate::validate;

/// The state of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Its id.
    pub id: ModelId,
    /// Its name; unique.
    pub name: String,
    /// When it was made.
    pub created_at: DateTime<Utc>,
}

/// What happened to a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum ModelEvent {
    /// It was made.
    #[serde(rename = "model.created.v1")]
    Created {
        /// Its id.
        id: ModelId,
        /// Its name.
        name: String,
        /// When.
        created_at: DateTime<Utc>,
    },
}

/// What may be asked of a model.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelCommand {
    /// Make it.
    Create {
        /// A fresh id.
        id: ModelId,
        /// Its name.
        name: String,
        /// The time.
        now: DateTime<Utc>,
    },
}

impl Aggregate for Model {
    type Id = ModelId;
    type Command = ModelCommand;
    type Event = ModelEvent;
    const NOUN: &'static str = "model";

    fn decide(current: Option<&Self>, command: ModelCommand) -> Result<Vec<ModelEvent>, Refusal> {
        let ModelCommand::Create { id, name, now } = command;
        vacant(current)?;
        validate::name("name", &name)?;
        Ok(vec![ModelEvent::Created { id, name, created_at: now }])
    }

    fn evolve(_: Option<Self>, event: &ModelEvent) -> Option<Self> {
        let ModelEvent::Created { id, name, created_at } = event;
        Some(Self { id: *id, name: name.clone(), created_at: *created_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::check;
    use crate::refusal::{Rule, invalid};

    #[test]
    fn a_model_is_made_once_with_a_usable_name() {
        let now = DateTime::UNIX_EPOCH;
        let id = ModelId::from_u128(1);
        let create = |name: &str| ModelCommand::Create { id, name: name.into(), now };
        let created = ModelEvent::Created { id, name: "SmolLM2-135M".into(), created_at: now };
        check::<Model>(&[], create("SmolLM2-135M"), Ok(vec![created.clone()]));
        check::<Model>(&[created], create("SmolLM2-135M"), Err(Refusal::Exists { noun: "model" }));
        check::<Model>(
            &[],
            create("a b"),
            Err(invalid("name", Rule::Name { max: validate::NAME_CHARS_MAX })),
        );
    }
}
