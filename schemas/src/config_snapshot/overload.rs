//! What a deployment does with requests that it cannot serve at once.
//!
//! A deployment is overloaded for a request that would have to wait for others for more than half of what the deployment's
//! target for its first token leaves. What then happens is the policy of the request's class. Whatever waits has bounds: on how many wait before it, and on
//! how long it waits; beyond them the request is refused, at once where that can be foreseen, else when the time is over
//! and it has not begun.

use serde::{Deserialize, Serialize};

/// The policies of one deployment, by class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overload {
    /// Of interactive requests.
    pub interactive: OverloadPolicy,
    /// Of batch requests.
    pub batch: OverloadPolicy,
}

/// Bounds of what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueBounds {
    /// Requests that may wait for a seat at a replica; with none of them allowed, who finds no seat is refused.
    pub max_depth: u32,
    /// From a request's arrival until it begins to be computed, milliseconds.
    pub max_wait_ms: u64,
}

impl Default for QueueBounds {
    /// A minute is the patience of the common clients' default time-outs; the depth is that of several full replicas.
    fn default() -> Self {
        Self { max_depth: 1_024, max_wait_ms: 60_000 }
    }
}

/// What is done with a request under overload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "snake_case")]
pub enum OverloadPolicy {
    /// It waits.
    Queue {
        /// How long.
        #[serde(flatten)]
        bounds: QueueBounds,
    },
    /// It is refused.
    Shed,
    /// It waits, and its answer is cut to a length.
    Shrink {
        /// Tokens of each of its choices.
        max_output_tokens: u32,
        /// How long it waits.
        #[serde(flatten)]
        bounds: QueueBounds,
    },
    /// A smaller model answers, if the tenant agreed to that and the smaller one is not overloaded; else it waits.
    Overflow {
        /// The smaller model, as clients name it.
        model: String,
        /// How long it waits.
        #[serde(flatten)]
        bounds: QueueBounds,
    },
}

impl Default for OverloadPolicy {
    fn default() -> Self {
        Self::Queue { bounds: QueueBounds::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_is_read_from_its_name_and_what_is_left_out_has_its_default() {
        let check = |json: &str, expected: OverloadPolicy| {
            let read: OverloadPolicy = serde_json::from_str(json).unwrap();
            assert_eq!(read, expected);
            let written = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<OverloadPolicy>(&written).unwrap(), expected);
        };
        let bounds = QueueBounds { max_depth: 8, ..QueueBounds::default() };
        check(r#"{"policy":"queue","max_depth":8}"#, OverloadPolicy::Queue { bounds });
        check(r#"{"policy":"shed"}"#, OverloadPolicy::Shed);
        check(
            r#"{"policy":"shrink","max_output_tokens":64,"max_depth":8}"#,
            OverloadPolicy::Shrink { max_output_tokens: 64, bounds },
        );
        check(
            r#"{"policy":"overflow","model":"small","max_depth":8}"#,
            OverloadPolicy::Overflow { model: "small".into(), bounds },
        );
        let none: Overload = serde_json::from_str("{}").unwrap();
        assert_eq!(none.batch, OverloadPolicy::Queue { bounds: QueueBounds::default() });
    }
}
