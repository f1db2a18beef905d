//! All events of all aggregates, and their stored form: a versioned name and JSON data. A name's shape never
//! changes; a new shape gets a new name, and the server's upcasting turns old ones into it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::alias::AliasEvent;
use crate::deployment::DeploymentEvent;
use crate::model::ModelEvent;
use crate::node::NodeEvent;
use crate::platform::PlatformEvent;
use crate::price_book::PriceBookEvent;
use crate::signing_key::SigningKeyEvent;
use crate::tenant::TenantEvent;
use crate::version::VersionEvent;

/// An event's name and data, as stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredForm {
    /// `noun.what_happened.vN`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The event's fields.
    #[serde(default)]
    pub data: Value,
}

/// A stored event that this program does not understand.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// No aggregate has events of this name.
    #[error("unknown event '{event_type}'")]
    Unknown {
        /// The stored name.
        event_type: String,
    },
    /// The data does not have the shape that the name promises.
    #[error("event '{event_type}' has an unexpected shape")]
    Shape {
        /// The stored name.
        event_type: String,
        /// The parser's words.
        #[source]
        source: serde_json::Error,
    },
}

/// The event belongs to another aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of another aggregate")]
pub struct OtherAggregate;

macro_rules! events {
    ($($prefix:literal $variant:ident($event:ty),)*) => {
        /// Any event.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Event { $(#[doc = concat!("Of a ", $prefix, ".")] $variant($event),)* }

        $(
            impl From<$event> for Event {
                fn from(event: $event) -> Self {
                    Self::$variant(event)
                }
            }

            impl TryFrom<Event> for $event {
                type Error = OtherAggregate;

                fn try_from(event: Event) -> Result<Self, OtherAggregate> {
                    match event {
                        Event::$variant(event) => Ok(event),
                        _ => Err(OtherAggregate),
                    }
                }
            }
        )*

        impl Event {
            /// The event as it is stored.
            pub fn encode(&self) -> StoredForm {
                let whole = match self { $(Self::$variant(event) => serde_json::to_value(event),)* };
                whole
                    .and_then(serde_json::from_value)
                    .expect("events are plain data tagged with type and data")
            }

            /// The event that `stored` is.
            pub fn decode(stored: StoredForm) -> Result<Self, DecodeError> {
                let noun = stored.event_type.split('.').next().unwrap_or_default();
                match noun {
                    $($prefix => shape(stored).map(Self::$variant),)*
                    _ => Err(DecodeError::Unknown { event_type: stored.event_type }),
                }
            }
        }
    };
}

events! {
    "tenant" Tenant(TenantEvent),
    "platform" Platform(PlatformEvent),
    "model" Model(ModelEvent),
    "version" Version(VersionEvent),
    "alias" Alias(AliasEvent),
    "deployment" Deployment(DeploymentEvent),
    "price_book" PriceBook(PriceBookEvent),
    "signing_key" SigningKey(SigningKeyEvent),
    "node" Node(NodeEvent),
}

fn shape<E: serde::de::DeserializeOwned>(stored: StoredForm) -> Result<E, DecodeError> {
    let event_type = stored.event_type.clone();
    serde_json::to_value(stored)
        .and_then(serde_json::from_value)
        .map_err(|source| DecodeError::Shape { event_type, source })
}

#[cfg(test)]
mod tests {
    use weir_schemas::ids::ModelId;

    use super::*;

    #[test]
    fn stored_form_is_a_versioned_name_and_data_and_reads_back() {
        let event = Event::from(ModelEvent::Created {
            id: ModelId::from_u128(1),
            name: "m".into(),
            created_at: chrono::DateTime::UNIX_EPOCH,
        });
        let stored = event.encode();
        assert_eq!(stored.event_type, "model.created.v1");
        assert_eq!(stored.data["name"], "m");
        assert_eq!(Event::decode(stored).unwrap(), event);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let decode = |event_type: &str| {
            Event::decode(StoredForm { event_type: event_type.into(), data: Value::Null })
                .unwrap_err()
                .to_string()
        };
        assert_eq!(decode("ghost.seen.v1"), "unknown event 'ghost.seen.v1'");
        assert_eq!(decode("model.created.v9"), "event 'model.created.v9' has an unexpected shape");
    }
}
