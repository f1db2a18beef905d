//! Deployment: a pinned version served by a pool of workers, how many replicas are wanted, and its latency targets.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use weir_schemas::config_snapshot::Slo;
use weir_schemas::ids::{DeploymentId, VersionId};

use crate::aggregate::{Aggregate, existing, vacant};
use crate::refusal::Refusal;
use crate::validate;

/// More than any one pool here.
const REPLICAS_MAX: u64 = 10_000;
/// An hour: a target that long is no target.
const SLO_MS_MAX: u64 = 3_600_000;

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
        /// The time.
        now: DateTime<Utc>,
    },
    /// Change what is given.
    Update {
        /// Replicas wanted.
        replicas: Option<u32>,
        /// Latency targets.
        slo: Option<Slo>,
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
            DeploymentCommand::Create { id, version, pool, replicas, slo, now } => {
                vacant(current)?;
                validate::name("pool", &pool)?;
                check_replicas(replicas)?;
                check_slo(slo)?;
                Ok(vec![DeploymentEvent::Created { id, version, pool, replicas, slo, created_at: now }])
            }
            DeploymentCommand::Update { replicas, slo } => {
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
                Ok(events)
            }
            DeploymentCommand::Delete => existing(current).map(|_| vec![DeploymentEvent::Deleted {}]),
        }
    }

    fn evolve(current: Option<Self>, event: &DeploymentEvent) -> Option<Self> {
        match event {
            DeploymentEvent::Created { id, version, pool, replicas, slo, created_at } => Some(Self {
                id: *id,
                version: *version,
                pool: pool.clone(),
                replicas: *replicas,
                slo: *slo,
                created_at: *created_at,
            }),
            DeploymentEvent::Scaled { replicas } => current.map(|d| Self { replicas: *replicas, ..d }),
            DeploymentEvent::SloSet { slo } => current.map(|d| Self { slo: *slo, ..d }),
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
            now: DateTime::UNIX_EPOCH,
        };
        let replicas = Rule::Range { min: 1, max: REPLICAS_MAX };
        check::<Deployment>(&[], create("default", 1), Ok(vec![created()]));
        check::<Deployment>(&[], create("default", 0), Err(invalid("replicas", replicas)));
        let update = |replicas, slo| DeploymentCommand::Update { replicas: Some(replicas), slo: Some(slo) };
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
}
