//! Node: a gateway or worker that has said who it is. An operator retires it when it is gone for good; that is
//! final, since its leases go to others: a machine that returns does so under a new id.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use weir_schemas::config_snapshot::is_http_address;
use weir_schemas::ids::{GatewayId, IdError, InstanceId, WorkerId};

use crate::aggregate::{Aggregate, existing};
use crate::refusal::{Refusal, Rule};
use crate::validate::{self, ensure};

const ADDRESS_CHARS_MAX: usize = 512;

/// The id of either kind of node; which one it is stands in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NodeId {
    /// A gateway.
    Gateway(GatewayId),
    /// A worker.
    Worker(WorkerId),
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gateway(id) => id.fmt(f),
            Self::Worker(id) => id.fmt(f),
        }
    }
}

impl FromStr for NodeId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        text.parse().map(Self::Gateway).or_else(|_| text.parse().map(Self::Worker))
    }
}

/// What a node says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// This run of the process.
    pub instance: InstanceId,
    /// `http://host:port` where others reach it.
    pub address: String,
    /// The pool that a worker serves; empty for a gateway.
    pub pool: String,
}

/// The state of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// What it last said about itself.
    pub registration: Registration,
    /// When it first did.
    pub registered_at: DateTime<Utc>,
    /// When an operator retired it.
    pub retired_at: Option<DateTime<Utc>>,
}

/// What happened to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum NodeEvent {
    /// It said who it is, first or differently from before.
    #[serde(rename = "node.registered.v1")]
    Registered {
        /// Its id.
        id: NodeId,
        /// What it said.
        registration: Registration,
        /// When.
        registered_at: DateTime<Utc>,
    },
    /// It is gone for good.
    #[serde(rename = "node.retired.v1")]
    Retired {
        /// When.
        retired_at: DateTime<Utc>,
    },
}

/// What may be asked of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeCommand {
    /// Note what it says about itself; the same again changes nothing.
    Register {
        /// Its id.
        id: NodeId,
        /// What it says.
        registration: Registration,
        /// The time.
        now: DateTime<Utc>,
    },
    /// It is gone for good.
    Retire {
        /// The time.
        now: DateTime<Utc>,
    },
}

impl Aggregate for Node {
    type Id = NodeId;
    type Command = NodeCommand;
    type Event = NodeEvent;
    const NOUN: &'static str = "node";

    fn decide(current: Option<&Self>, command: NodeCommand) -> Result<Vec<NodeEvent>, Refusal> {
        match command {
            NodeCommand::Register { id, registration, now } => {
                registration.check(id)?;
                match current {
                    Some(node) if node.retired_at.is_some() => {
                        Err(Refusal::State { noun: Self::NOUN, state: "retired" })
                    }
                    Some(node) if node.registration == registration => Ok(vec![]),
                    Some(_) | None => {
                        Ok(vec![NodeEvent::Registered { id, registration, registered_at: now }])
                    }
                }
            }
            NodeCommand::Retire { now } => Ok(match existing(current)?.retired_at {
                Some(_) => vec![],
                None => vec![NodeEvent::Retired { retired_at: now }],
            }),
        }
    }

    fn evolve(current: Option<Self>, event: &NodeEvent) -> Option<Self> {
        match event {
            NodeEvent::Registered { id, registration, registered_at } => Some(Self {
                id: *id,
                registration: registration.clone(),
                registered_at: current.map_or(*registered_at, |node| node.registered_at),
                retired_at: None,
            }),
            NodeEvent::Retired { retired_at } => {
                current.map(|node| Self { retired_at: Some(*retired_at), ..node })
            }
        }
    }
}

impl Registration {
    fn check(&self, id: NodeId) -> Result<(), Refusal> {
        let good = is_http_address(&self.address);
        ensure(good && self.address.len() <= ADDRESS_CHARS_MAX, "address", Rule::Address)?;
        match id {
            NodeId::Worker(_) => validate::name("pool", &self.pool),
            NodeId::Gateway(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::check;
    use crate::refusal::invalid;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    const ID: NodeId = NodeId::Worker(WorkerId::from_u128(1));

    fn registration(instance: u128) -> Registration {
        Registration {
            instance: InstanceId::from_u128(instance),
            address: "http://127.0.0.1:7000".into(),
            pool: "default".into(),
        }
    }

    fn register(instance: u128, seconds: i64) -> NodeCommand {
        NodeCommand::Register { id: ID, registration: registration(instance), now: at(seconds) }
    }

    fn registered(instance: u128, seconds: i64) -> NodeEvent {
        NodeEvent::Registered { id: ID, registration: registration(instance), registered_at: at(seconds) }
    }

    #[test]
    fn only_a_change_is_noted() {
        check::<Node>(&[], register(1, 5), Ok(vec![registered(1, 5)]));
        check::<Node>(&[registered(1, 5)], register(1, 6), Ok(vec![]));
        check::<Node>(&[registered(1, 5)], register(2, 6), Ok(vec![registered(2, 6)]));
        let node = Node::replay(&[registered(1, 5), registered(2, 6)]).unwrap();
        assert_eq!((node.registered_at, node.registration.instance), (at(5), InstanceId::from_u128(2)));
    }

    #[test]
    fn retirement_is_final() {
        let retired = NodeEvent::Retired { retired_at: at(7) };
        check::<Node>(&[registered(1, 5)], NodeCommand::Retire { now: at(7) }, Ok(vec![retired.clone()]));
        let given = [registered(1, 5), retired];
        check::<Node>(&given, NodeCommand::Retire { now: at(8) }, Ok(vec![]));
        check::<Node>(&given, register(1, 9), Err(Refusal::State { noun: "node", state: "retired" }));
    }

    #[test]
    fn an_address_that_nobody_could_reach_is_refused() {
        for bad in ["", "127.0.0.1:1", "http://host", "http://:1", "http://host:70000", "http://a b:1"] {
            let registration = Registration { address: bad.into(), ..registration(1) };
            let command = NodeCommand::Register { id: ID, registration, now: at(1) };
            check::<Node>(&[], command, Err(invalid("address", Rule::Address)));
        }
    }
}
