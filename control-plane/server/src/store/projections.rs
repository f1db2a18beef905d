//! Read models: each file owns the tables of one view and folds events into them, within the write's transaction.
//! They hold nothing that the log does not; [`super::rebuild`] empties and refills them.

mod aliases;
mod deployments;
mod keys;
mod models;
mod nodes;
mod price_books;
mod signing_keys;
mod tenants;
mod versions;

use sqlx::PgConnection;
use weir_domain::envelope::EventEnvelope;
use weir_domain::event::Event;

use super::error::StoreError;
use super::page::signed;

/// Every table that is projected, for rebuilding.
pub(super) const TABLES: [&str; 13] = [
    "tenants",
    "signing_keys",
    "keys",
    "platform_keys",
    "models",
    "versions",
    "aliases",
    "alias_targets",
    "deployments",
    "price_books",
    "priced_versions",
    "price_versions",
    "nodes",
];

/// Where an event stands, as the tables have it.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    stream: &'a str,
    version: i64,
    position: i64,
}

/// Folds one event into the views that show it.
pub(super) async fn apply(
    connection: &mut PgConnection,
    envelope: &EventEnvelope<Event>,
) -> Result<(), StoreError> {
    let place = Place {
        stream: &envelope.stream,
        version: signed(envelope.version),
        position: signed(envelope.position),
    };
    match &envelope.event {
        Event::Tenant(event) => {
            tenants::apply(connection, place, event).await?;
            keys::apply_tenant(connection, place, event).await
        }
        Event::Platform(event) => keys::apply_platform(connection, event).await,
        Event::Model(event) => models::apply(connection, place, event).await,
        Event::Version(event) => versions::apply(connection, place, event).await,
        Event::Alias(event) => aliases::apply(connection, place, event).await,
        Event::Deployment(event) => deployments::apply(connection, place, event).await,
        Event::PriceBook(event) => price_books::apply(connection, place, event).await,
        Event::SigningKey(event) => signing_keys::apply(connection, place, event).await,
        Event::Node(event) => nodes::apply(connection, place, event).await,
    }
}
