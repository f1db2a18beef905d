//! The page of buckets that both endpoints answer with; a bucket without results is shown empty.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

use super::query::{UsageQuery, page_name};
use crate::http::problem::Problem;

/// Results of one stretch of time.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Bucket<R> {
    /// Always `bucket`.
    #[schema(example = "bucket")]
    object: &'static str,
    /// Unix seconds, inclusive.
    start_time: i64,
    /// Unix seconds, exclusive.
    end_time: i64,
    /// One for each group; empty if nothing happened.
    results: Vec<R>,
}

/// A page of buckets, oldest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BucketPage<R> {
    /// Always `page`.
    #[schema(example = "page")]
    object: &'static str,
    /// The buckets.
    data: Vec<Bucket<R>>,
    /// Whether there are more.
    has_more: bool,
    /// `page` of the next page.
    next_page: Option<String>,
}

/// Lays rows, ordered by bucket, out over every bucket of the page.
pub(super) fn page<T, R>(
    query: &UsageQuery,
    rows: Vec<T>,
    bucket: impl Fn(&T) -> i64,
    result: impl Fn(T) -> R,
) -> Result<Json<BucketPage<R>>, Problem> {
    if i64::try_from(rows.len()).unwrap_or(i64::MAX) > query.filter.rows_max {
        return Err(Problem::invalid("too many results for one page: ask for fewer buckets or groups"));
    }
    let mut rows = rows.into_iter().peekable();
    let mut data = Vec::new();
    let mut start_time = query.first_bucket;
    while start_time < query.next_bucket {
        let mut results = Vec::new();
        while let Some(row) = rows.next_if(|row| bucket(row) == start_time) {
            results.push(result(row));
        }
        let end_time = start_time + query.filter.bucket_s;
        data.push(Bucket { object: "bucket", start_time, end_time, results });
        start_time = end_time;
    }
    let next_page = query.has_more.then(|| page_name(query.next_bucket));
    Ok(Json(BucketPage { object: "page", data, has_more: query.has_more, next_page }))
}
