//! Alias: the name that clients ask for, and the pinned versions it leads to by weight. Retargeting is how one
//! rolls out (canary), switches over (blue/green) and rolls back.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use weir_schemas::config_snapshot::AliasTarget;
use weir_schemas::ids::AliasId;

use crate::aggregate::{Aggregate, existing, vacant};
use crate::refusal::{Refusal, Rule};
use crate::validate::{self, ensure};

/// A rollout compares a few versions at a time.
pub const TARGETS_MAX: usize = 16;
const WEIGHT_MAX: u64 = 1_000_000;

/// The state of an alias.
#[derive(Debug, Clone, PartialEq)]
pub struct Alias {
    /// Its id.
    pub id: AliasId,
    /// The name; unique, never changed.
    pub name: String,
    /// Where its requests go.
    pub targets: Vec<AliasTarget>,
    /// When it was made.
    pub created_at: DateTime<Utc>,
}

/// What happened to an alias.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum AliasEvent {
    /// It was made.
    #[serde(rename = "alias.created.v1")]
    Created {
        /// Its id.
        id: AliasId,
        /// The name.
        name: String,
        /// Where its requests go.
        targets: Vec<AliasTarget>,
        /// When.
        created_at: DateTime<Utc>,
    },
    /// Its requests go elsewhere.
    #[serde(rename = "alias.retargeted.v1")]
    Retargeted {
        /// Where.
        targets: Vec<AliasTarget>,
    },
    /// It is no more; the name is free.
    #[serde(rename = "alias.deleted.v1")]
    Deleted {},
}

/// What may be asked of an alias.
#[derive(Debug, Clone, PartialEq)]
pub enum AliasCommand {
    /// Make it.
    Create {
        /// A fresh id.
        id: AliasId,
        /// The name.
        name: String,
        /// Where its requests go.
        targets: Vec<AliasTarget>,
        /// The time.
        now: DateTime<Utc>,
    },
    /// Send its requests elsewhere.
    Retarget {
        /// Where.
        targets: Vec<AliasTarget>,
    },
    /// Take the name away.
    Delete,
}

impl Aggregate for Alias {
    type Id = AliasId;
    type Command = AliasCommand;
    type Event = AliasEvent;
    const NOUN: &'static str = "alias";

    fn decide(current: Option<&Self>, command: AliasCommand) -> Result<Vec<AliasEvent>, Refusal> {
        match command {
            AliasCommand::Create { id, name, targets, now } => {
                vacant(current)?;
                validate::name("name", &name)?;
                check_targets(&targets)?;
                Ok(vec![AliasEvent::Created { id, name, targets, created_at: now }])
            }
            AliasCommand::Retarget { targets } => {
                check_targets(&targets)?;
                let unchanged = existing(current)?.targets == targets;
                Ok(if unchanged { vec![] } else { vec![AliasEvent::Retargeted { targets }] })
            }
            AliasCommand::Delete => existing(current).map(|_| vec![AliasEvent::Deleted {}]),
        }
    }

    fn evolve(current: Option<Self>, event: &AliasEvent) -> Option<Self> {
        match event {
            AliasEvent::Created { id, name, targets, created_at } => {
                Some(Self { id: *id, name: name.clone(), targets: targets.clone(), created_at: *created_at })
            }
            AliasEvent::Retargeted { targets } => {
                current.map(|alias| Self { targets: targets.clone(), ..alias })
            }
            AliasEvent::Deleted {} => None,
        }
    }
}

fn check_targets(targets: &[AliasTarget]) -> Result<(), Refusal> {
    let distinct =
        targets.iter().enumerate().all(|(i, t)| targets[..i].iter().all(|u| u.version != t.version));
    let counted = (1..=TARGETS_MAX).contains(&targets.len());
    ensure(distinct && counted, "targets", Rule::Distinct { max: TARGETS_MAX })?;
    for target in targets {
        validate::range("targets.weight", target.weight.into(), 0, WEIGHT_MAX)?;
    }
    ensure(targets.iter().any(|target| target.weight > 0), "targets", Rule::Weights)
}

#[cfg(test)]
mod tests {
    use weir_schemas::ids::VersionId;

    use super::*;
    use crate::aggregate::check;
    use crate::refusal::invalid;

    fn target(version: u128, weight: u32) -> AliasTarget {
        AliasTarget { version: VersionId::from_u128(version), weight }
    }

    fn created() -> AliasEvent {
        AliasEvent::Created {
            id: AliasId::from_u128(1),
            name: "smol".into(),
            targets: vec![target(1, 1)],
            created_at: DateTime::UNIX_EPOCH,
        }
    }

    fn retarget(targets: &[AliasTarget]) -> AliasCommand {
        AliasCommand::Retarget { targets: targets.to_vec() }
    }

    #[test]
    fn canary_then_rollback() {
        let canary = [target(1, 95), target(2, 5)];
        let moved = AliasEvent::Retargeted { targets: canary.to_vec() };
        check::<Alias>(&[created()], retarget(&canary), Ok(vec![moved.clone()]));
        check::<Alias>(&[created(), moved.clone()], retarget(&canary), Ok(vec![]));
        let back = AliasEvent::Retargeted { targets: vec![target(1, 1)] };
        check::<Alias>(&[created(), moved], retarget(&[target(1, 1)]), Ok(vec![back]));
    }

    #[test]
    fn targets_that_cannot_route_are_refused() {
        let distinct = invalid("targets", Rule::Distinct { max: TARGETS_MAX });
        check::<Alias>(&[created()], retarget(&[]), Err(distinct.clone()));
        check::<Alias>(&[created()], retarget(&[target(1, 1), target(1, 2)]), Err(distinct));
        check::<Alias>(&[created()], retarget(&[target(1, 0)]), Err(invalid("targets", Rule::Weights)));
    }

    #[test]
    fn a_deleted_alias_is_absent() {
        check::<Alias>(&[created()], AliasCommand::Delete, Ok(vec![AliasEvent::Deleted {}]));
        let gone = [created(), AliasEvent::Deleted {}];
        check::<Alias>(&gone, retarget(&[target(1, 1)]), Err(Refusal::Absent { noun: "alias" }));
    }
}
