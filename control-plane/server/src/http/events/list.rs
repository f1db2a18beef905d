//! `GET /api/v1/events`

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::Query;
use crate::http::problem::Problem;
use crate::http::read::{Page, limit};
use crate::http::schema::ReadProblems;
use crate::store::event_log::EventRow;

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// Only of the resource with this id.
    stream: Option<String>,
    /// Only after this position: `next_cursor` of the page before.
    after: Option<u64>,
    /// Most entries wanted, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// A stored event.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub(crate) struct EventView {
    /// Its place in the log, gapless, in commit order.
    #[schema(minimum = 1)]
    position: i64,
    /// The id of the resource that it happened to.
    stream: String,
    /// Its place in that resource's history.
    version: i64,
    /// What happened: a versioned name.
    #[serde(rename = "type")]
    #[schema(example = "tenant.created.v1")]
    event_type: String,
    /// Its fields.
    #[schema(value_type = Object)]
    data: serde_json::Value,
    /// Who caused it: a key id, or the control plane itself.
    actor: String,
    /// When.
    recorded_at: DateTime<Utc>,
}

impl From<EventRow> for EventView {
    fn from(row: EventRow) -> Self {
        let EventRow { position, stream, version, event_type, data, actor, recorded_at } = row;
        Self { position, stream, version, event_type, data, actor, recorded_at }
    }
}

/// List what happened, in order, of everything or of one resource.
#[utoipa::path(get, path = "/api/v1/events", tag = "events", params(EventsQuery),
    responses((status = 200, body = Page<EventView>), ReadProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn list_events(
    admin: PlatformAdmin,
    State(app): State<App>,
    Query(query): Query<EventsQuery>,
) -> Result<Json<Page<EventView>>, Problem> {
    let limit = limit(query.limit)?;
    let after = query.after.unwrap_or(0);
    let rows = app.store.events(admin.scope, query.stream.as_deref(), after, i64::from(limit) + 1).await?;
    Ok(Page::of(rows, limit, |row| row.position.to_string()))
}
