//! What every read has in common: pages by cursor, one aggregate as of now or a past moment.

use axum::http::header::ETAG;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use weir_domain::aggregate::Aggregate;

use super::App;
use super::problem::Problem;
use super::write::etag;
use crate::scope::ReadScope;
use crate::store::event_log::AsOf;
use crate::store::page::PageRequest;

const LIMIT_DEFAULT: u32 = 50;
/// A page stays well under a megabyte.
const LIMIT_MAX: u32 = 200;

/// Which part of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageQuery {
    /// Most entries wanted, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    pub(crate) limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub(crate) after: Option<String>,
}

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page<V> {
    /// The entries, oldest first.
    pub(crate) data: Vec<V>,
    /// Whether there are more.
    pub(crate) has_more: bool,
    /// `after` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_cursor: Option<String>,
}

/// The limit in force, or the refusal of an impossible one.
pub(crate) fn limit(asked: Option<u32>) -> Result<u32, Problem> {
    let limit = asked.unwrap_or(LIMIT_DEFAULT);
    if (1..=LIMIT_MAX).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::invalid(format!("limit must be 1 to {LIMIT_MAX}")))
}

impl PageQuery {
    pub(crate) fn check(self) -> Result<PageRequest, Problem> {
        Ok(PageRequest { limit: limit(self.limit)?, after: self.after })
    }
}

impl<V> Page<V> {
    /// The page made of at most `limit` of `rows`, which hold one more if there are more.
    pub(crate) fn of<R: Into<V>>(
        mut rows: Vec<R>,
        limit: u32,
        cursor: impl FnOnce(&R) -> String,
    ) -> axum::Json<Self> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let next_cursor = rows.last().filter(|_| has_more).map(cursor);
        axum::Json(Self { data: rows.into_iter().map(Into::into).collect(), has_more, next_cursor })
    }
}

/// Which moment an aggregate is shown as of; at most one of the two.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AsOfQuery {
    /// After the event at this position.
    as_of_position: Option<u64>,
    /// After the last event recorded not later than this (RFC 3339).
    as_of_time: Option<DateTime<Utc>>,
}

impl AsOfQuery {
    /// Whether no past moment is asked for.
    pub(crate) const fn is_now(&self) -> bool {
        self.as_of_position.is_none() && self.as_of_time.is_none()
    }

    fn check(&self) -> Result<AsOf, Problem> {
        match (self.as_of_position, self.as_of_time) {
            (None, None) => Ok(AsOf::Now),
            (Some(position), None) => Ok(AsOf::Position(position)),
            (None, Some(time)) => Ok(AsOf::Time(time)),
            (Some(_), Some(_)) => Err(Problem::invalid("give as_of_position or as_of_time, not both")),
        }
    }
}

/// Answers with one aggregate and its ETag.
pub(crate) async fn one<A: Aggregate, V: Serialize>(
    app: &App,
    scope: ReadScope,
    id: A::Id,
    as_of: &AsOfQuery,
    view: impl FnOnce(&A) -> V + Send,
) -> Result<Response, Problem> {
    let found = app.store.aggregate::<A>(scope, id, as_of.check()?).await?;
    let (state, version) = found.ok_or_else(|| Problem::absent(A::NOUN))?;
    let mut response = axum::Json(view(&state)).into_response();
    if let Ok(value) = etag(version).parse() {
        response.headers_mut().insert(ETAG, value);
    }
    Ok(response)
}
