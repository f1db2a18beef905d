//! Deployment: a pinned version served by a pool of workers, how many replicas are wanted, its latency targets, and what
//! is done with requests that would miss them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use weir_schemas::config_snapshot::{Overload, OverloadPolicy, QueueBounds, Slo};
use weir_schemas::ids::{DeploymentId, VersionId};

use crate::aggregate::{Aggregate, existing, vacant};
use crate::refusal::Refusal;
use crate::validate;

/// More than any one pool here.
const REPLICAS_MAX: u64 = 10_000;
/// An hour: a target that long is no target.
const SLO_MS_MAX: u64 = 3_600_000;
/// A queue that long is none.
const QUEUE_DEPTH_MAX: u64 = 1_000_000;
/// Any model's context.
const OUTPUT_TOKENS_MAX: u64 = 10_000_000;

/// The state of a deployment.
#[derive(Debug, Clone, PartialEq)]
pub struct Deployment {
    /// Its id.
    pub id: DeploymentId,
    /// What is served.
    pub version: VersionId,
    /// The workers that serve it: those started with this pool name.
    pub pool: String,
    /// Replicas wanted.
    pub replicas: u32,
    /// Latency targets.
    pub slo: Slo,
    /// What is done with requests that would miss the target for the first token.
    pub overload: Overload,
    /// When it was made.
    pub created_at: DateTime<Utc>,
}

/// What happened to a deployment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum DeploymentEvent {
    /// It was made.
    #[serde(rename = "deployment.created.v1")]
    Created {
        /// Its id.
        id: DeploymentId,
        /// What is served.
        version: VersionId,
        /// By which workers.
        pool: String,
        /// Replicas wanted.
        replicas: u32,
        /// Latency targets.
        slo: Slo,
        /// The policies under overload.
        #[serde(default)]
        overload: Overload,
        /// When.
        created_at: DateTime<Utc>,
    },
    /// Another number of replicas is wanted.
    #[serde(rename = "deployment.scaled.v1")]
    Scaled {
        /// How many.
        replicas: u32,
    },
    /// It got other latency targets.
    #[serde(rename = "deployment.slo_set.v1")]
    SloSet {
        /// Which.
        slo: Slo,
    },
    /// It got other policies under overload.
    #[serde(rename = "deployment.overload_set.v1")]
    OverloadSet {
        /// Which.
        overload: Overload,
    },
    /// Its workers stop serving the version.
    #[serde(rename = "deployment.deleted.v1")]
    Deleted {},
}

/// What may be asked of a deployment.
#[derive(Debug, Clone, PartialEq)]
pub enum DeploymentCommand {
    /// Make it.
    Create {
        /// A fresh id.
        id: DeploymentId,
        /// What is served.
        version: VersionId,
        /// By which workers.
        pool: String,
        /// Replicas wanted.
        replicas: u32,
        /// Latency targets.
        slo: Slo,
        /// The policies under overload.
        overload: Overload,
        /// The time.
        now: DateTime<Utc>,
    },
    /// Change what is given.
    Update {
        /// Replicas wanted.
        replicas: Option<u32>,
        /// Latency targets.
        slo: Option<Slo>,
        /// The policies under overload.
        overload: Option<Overload>,
    },
    /// Stop serving the version here.
    Delete,
}

impl Aggregate for Deployment {
    type Id = DeploymentId;
    type Command = DeploymentCommand;
    type Event = DeploymentEvent;
    const NOUN: &'static str = "deployment";

    fn decide(current: Option<&Self>, command: DeploymentCommand) -> Result<Vec<DeploymentEvent>, Refusal> {
        match command {
            DeploymentCommand::Create { id, version, pool, replicas, slo, overload, now } => {
                vacant(current)?;
                validate::name("pool", &pool)?;
                check_replicas(replicas)?;
                check_slo(slo)?;
                check_overload(&overload)?;
                let created_at = now;
                Ok(vec![DeploymentEvent::Created { id, version, pool, replicas, slo, overload, created_at }])
            }
            DeploymentCommand::Update { replicas, slo, overload } => {
                let deployment = existing(current)?;
                let mut events = Vec::new();
                if let Some(replicas) = replicas.filter(|replicas| *replicas != deployment.replicas) {
                    check_replicas(replicas)?;
                    events.push(DeploymentEvent::Scaled { replicas });
                }
                if let Some(slo) = slo.filter(|slo| *slo != deployment.slo) {
                    check_slo(slo)?;
                    events.push(DeploymentEvent::SloSet { slo });
                }
                if let Some(overload) = overload.filter(|overload| *overload != deployment.overload) {
                    check_overload(&overload)?;
                    events.push(DeploymentEvent::OverloadSet { overload });
                }
                Ok(events)
            }
            DeploymentCommand::Delete => existing(current).map(|_| vec![DeploymentEvent::Deleted {}]),
        }
    }

    fn evolve(current: Option<Self>, event: &DeploymentEvent) -> Option<Self> {
        match event {
            DeploymentEvent::Created { id, version, pool, replicas, slo, overload, created_at } => {
                Some(Self {
                    id: *id,
                    version: *version,
                    pool: pool.clone(),
                    replicas: *replicas,
                    slo: *slo,
                    overload: overload.clone(),
                    created_at: *created_at,
                })
            }
            DeploymentEvent::Scaled { replicas } => current.map(|d| Self { replicas: *replicas, ..d }),
            DeploymentEvent::SloSet { slo } => current.map(|d| Self { slo: *slo, ..d }),
            DeploymentEvent::OverloadSet { overload } => {
                current.map(|d| Self { overload: overload.clone(), ..d })
            }
            DeploymentEvent::Deleted {} => None,
        }
    }
}

fn check_replicas(replicas: u32) -> Result<(), Refusal> {
    validate::range("replicas", replicas.into(), 1, REPLICAS_MAX)
}

fn check_slo(slo: Slo) -> Result<(), Refusal> {
    validate::range("slo.ttft_ms", slo.ttft_ms, 1, SLO_MS_MAX)?;
    validate::range("slo.itl_ms", slo.itl_ms, 1, SLO_MS_MAX)
}

fn check_overload(overload: &Overload) -> Result<(), Refusal> {
    check_policy(&overload.interactive)?;
    check_policy(&overload.batch)
}

fn check_policy(policy: &OverloadPolicy) -> Result<(), Refusal> {
    match policy {
        OverloadPolicy::Queue { bounds } => check_bounds(bounds),
        OverloadPolicy::Shed => Ok(()),
        OverloadPolicy::Shrink { max_output_tokens, bounds } => {
            let tokens = u64::from(*max_output_tokens);
            validate::range("overload.max_output_tokens", tokens, 1, OUTPUT_TOKENS_MAX)?;
            check_bounds(bounds)
        }
        OverloadPolicy::Overflow { model, bounds } => {
            validate::name("overload.model", model)?;
            check_bounds(bounds)
        }
    }
}

/// A depth of zero is right: nobody waits.
fn check_bounds(bounds: &QueueBounds) -> Result<(), Refusal> {
    validate::range("overload.max_depth", bounds.max_depth.into(), 0, QUEUE_DEPTH_MAX)?;
    validate::range("overload.max_wait_ms", bounds.max_wait_ms, 1, SLO_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::check;
    use crate::refusal::{Rule, invalid};

    fn created() -> DeploymentEvent {
        DeploymentEvent::Created {
            id: DeploymentId::from_u128(1),
            version: VersionId::from_u128(2),
            pool: "default".into(),
            replicas: 1,
            slo: Slo::default(),
            overload: Overload::default(),
            created_at: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn made_scaled_deleted() {
        let create = |pool: &str, replicas| DeploymentCommand::Create {
            id: DeploymentId::from_u128(1),
            version: VersionId::from_u128(2),
            pool: pool.into(),
            replicas,
            slo: Slo::default(),
            overload: Overload::default(),
            now: DateTime::UNIX_EPOCH,
        };
        let replicas = Rule::Range { min: 1, max: REPLICAS_MAX };
        check::<Deployment>(&[], create("default", 1), Ok(vec![created()]));
        check::<Deployment>(&[], create("default", 0), Err(invalid("replicas", replicas)));
        let update = |replicas, slo| DeploymentCommand::Update {
            replicas: Some(replicas),
            slo: Some(slo),
            overload: None,
        };
        let slo = Slo { ttft_ms: 500, itl_ms: 50 };
        check::<Deployment>(&[created()], update(1, Slo::default()), Ok(vec![]));
        check::<Deployment>(
            &[created()],
            update(3, slo),
            Ok(vec![DeploymentEvent::Scaled { replicas: 3 }, DeploymentEvent::SloSet { slo }]),
        );
        let none = Slo { ttft_ms: 0, itl_ms: 50 };
        let range = Rule::Range { min: 1, max: SLO_MS_MAX };
        check::<Deployment>(&[created()], update(1, none), Err(invalid("slo.ttft_ms", range)));
        check::<Deployment>(
            &[created(), DeploymentEvent::Deleted {}],
            DeploymentCommand::Delete,
            Err(Refusal::Absent { noun: "deployment" }),
        );
    }

    #[test]
    fn policies_are_set_when_their_values_are_in_range() {
        let update = |batch: OverloadPolicy| {
            let overload = Some(Overload { batch, ..Overload::default() });
            DeploymentCommand::Update { replicas: None, slo: None, overload }
        };
        let bounds = QueueBounds { max_depth: 0, max_wait_ms: 1 };
        for policy in [
            OverloadPolicy::Queue { bounds },
            OverloadPolicy::Shed,
            OverloadPolicy::Shrink { max_output_tokens: 1, bounds },
            OverloadPolicy::Overflow { model: "small".into(), bounds },
        ] {
            let overload = Overload { batch: policy.clone(), ..Overload::default() };
            let set = DeploymentEvent::OverloadSet { overload: overload.clone() };
            check::<Deployment>(&[created()], update(policy.clone()), Ok(vec![set.clone()]));
            check::<Deployment>(&[created(), set], update(policy), Ok(vec![]));
        }
        let endless = QueueBounds { max_wait_ms: SLO_MS_MAX + 1, ..bounds };
        let out_of_range = |field, min, max| Err(invalid(field, Rule::Range { min, max }));
        for (policy, refusal) in [
            (OverloadPolicy::Queue { bounds: endless }, out_of_range("overload.max_wait_ms", 1, SLO_MS_MAX)),
            (
                OverloadPolicy::Shrink { max_output_tokens: 0, bounds },
                out_of_range("overload.max_output_tokens", 1, OUTPUT_TOKENS_MAX),
            ),
            (
                OverloadPolicy::Overflow { model: String::new(), bounds },
                Err(invalid("overload.model", Rule::Name { max: validate::NAME_CHARS_MAX })),
            ),
        ] {
            check::<Deployment>(&[created()], update(policy), refusal);
        }
    }

    #[test]
    fn a_deployment_of_before_there_were_policies_has_the_default_ones() {
        let event = serde_json::json!({"type": "deployment.created.v1", "data": {
            "id": DeploymentId::from_u128(1), "version": VersionId::from_u128(2), "pool": "default", "replicas": 1,
            "slo": {"ttft_ms": 200, "itl_ms": 100}, "created_at": "1970-01-01T00:00:00Z"}});
        assert_eq!(serde_json::from_value::<DeploymentEvent>(event).unwrap(), created());
    }
}
