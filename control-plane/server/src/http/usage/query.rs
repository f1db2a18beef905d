//! The query of both endpoints, read by hand: OpenAI's clients repeat `group_by[]`.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use utoipa::IntoParams;

use crate::http::App;
use crate::http::problem::Problem;
use crate::store::usage::{Grouping, UsageFilter};

/// Rows of one answer: all groups of all its buckets. Some megabytes of JSON.
const ROWS_MAX: i64 = 20_000;
/// Values of one filter.
const FILTER_VALUES_MAX: usize = 100;
/// Times beyond the year 9999 are mistakes (milliseconds for seconds).
const TIME_MAX: i64 = 253_402_300_799;

/// The parameters, for the contract; [`UsageQuery`] reads them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query in the contract")]
pub(crate) struct UsageParams {
    /// Unix seconds, inclusive.
    start_time: i64,
    /// Unix seconds, exclusive; now if absent.
    end_time: Option<i64>,
    /// `1m`, `1h` or `1d`; buckets are aligned to UTC.
    #[param(default = "1d", example = "1h")]
    bucket_width: Option<String>,
    /// What results are told apart by: `project_id`, `api_key_id`, `model`; usage also `service_tier`, `version_id`;
    /// costs also `line_item`; operators also `tenant_id`.
    #[param(rename = "group_by[]")]
    group_by: Option<Vec<String>>,
    /// Only these projects.
    #[param(rename = "project_ids[]")]
    project_ids: Option<Vec<String>>,
    /// Only these keys.
    #[param(rename = "api_key_ids[]")]
    api_key_ids: Option<Vec<String>>,
    /// Only these models.
    #[param(rename = "models[]")]
    models: Option<Vec<String>>,
    /// Buckets of one page: 7 of 31 days, 24 of 168 hours, 60 of 1440 minutes.
    limit: Option<u32>,
    /// `next_page` of the page before.
    page: Option<String>,
    /// Operators only: one tenant's. A tenant may name itself.
    tenant_id: Option<String>,
}

/// Width of a bucket, with the default and largest number of buckets on a page, as OpenAI has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    Minute,
    Hour,
    Day,
}

impl Width {
    const fn seconds(self) -> i64 {
        match self {
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
        }
    }

    const fn buckets(self) -> (i64, i64) {
        match self {
            Self::Minute => (60, 1_440),
            Self::Hour => (24, 168),
            Self::Day => (7, 31),
        }
    }
}

/// What was asked.
#[derive(Debug)]
pub(crate) struct UsageQuery {
    pub(crate) filter: UsageFilter,
    /// Start of the first bucket of this page.
    pub(crate) first_bucket: i64,
    /// Start of the bucket after the last of this page.
    pub(crate) next_bucket: i64,
    /// Whether that one still lies before the end.
    pub(crate) has_more: bool,
}

impl FromRequestParts<App> for UsageQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
            .map_err(|_| Problem::invalid("the query cannot be read"))?;
        Self::read(&pairs, app.clock.now().timestamp())
    }
}

fn integer(name: &str, value: &str) -> Result<i64, Problem> {
    let number = value.parse().ok().filter(|number| (0..=TIME_MAX).contains(number));
    number.ok_or_else(|| Problem::invalid(format!("{name} must be a whole number of seconds since 1970")))
}

impl UsageQuery {
    fn read(pairs: &[(String, String)], now: i64) -> Result<Self, Problem> {
        let (mut start, mut end, mut width, mut limit, mut page) = (None, None, Width::Day, None, None);
        let mut filter = UsageFilter { rows_max: ROWS_MAX, ..UsageFilter::default() };
        for (name, value) in pairs {
            match name.strip_suffix("[]").unwrap_or(name) {
                "start_time" => start = Some(integer(name, value)?),
                "end_time" => end = Some(integer(name, value)?),
                "bucket_width" => width = read_width(value)?,
                "limit" => limit = Some(integer(name, value)?),
                "page" => page = Some(read_page(value)?),
                "group_by" => group_by(&mut filter.group, value)?,
                "project_ids" => filter.projects.push(value.clone()),
                "api_key_ids" => filter.keys.push(value.clone()),
                "models" => filter.models.push(value.clone()),
                // Read, and held against the caller, by the extractor before this one.
                "tenant_id" => {}
                _ => return Err(Problem::invalid("the query holds an unknown parameter")),
            }
        }
        for values in [&filter.projects, &filter.keys, &filter.models] {
            if values.len() > FILTER_VALUES_MAX {
                return Err(Problem::invalid(format!("a filter may hold {FILTER_VALUES_MAX} values")));
            }
        }
        let start = start.ok_or_else(|| Problem::invalid("start_time is required"))?;
        let end = end.unwrap_or(now.saturating_add(1));
        if end <= start {
            return Err(Problem::invalid("end_time must lie after start_time"));
        }
        Self::paged(filter, (start, end), width, limit, page)
    }

    fn paged(
        mut filter: UsageFilter,
        (start, end): (i64, i64),
        width: Width,
        limit: Option<i64>,
        page: Option<i64>,
    ) -> Result<Self, Problem> {
        let (default, most) = width.buckets();
        let limit = limit.unwrap_or(default);
        if !(1..=most).contains(&limit) {
            return Err(Problem::invalid(format!("limit must be 1 to {most} for this bucket_width")));
        }
        let seconds = width.seconds();
        let aligned = |time: i64| time - time.rem_euclid(seconds);
        let first_bucket = aligned(page.unwrap_or(start).max(start));
        let next_bucket = (first_bucket + limit * seconds).min(aligned(end - 1) + seconds).max(first_bucket);
        filter.bucket_s = seconds;
        // The roll-up's resolution is a minute: the minute that holds start_time is included.
        filter.start = first_bucket.max(start - start.rem_euclid(60));
        filter.end = next_bucket.min(end);
        Ok(Self { filter, first_bucket, next_bucket, has_more: next_bucket < end })
    }
}

fn read_width(value: &str) -> Result<Width, Problem> {
    match value {
        "1m" => Ok(Width::Minute),
        "1h" => Ok(Width::Hour),
        "1d" => Ok(Width::Day),
        _ => Err(Problem::invalid("bucket_width must be 1m, 1h or 1d")),
    }
}

/// A page is named by its first bucket.
pub(super) fn page_name(bucket: i64) -> String {
    format!("page_{bucket}")
}

fn read_page(value: &str) -> Result<i64, Problem> {
    let bucket = value.strip_prefix("page_").ok_or_else(|| Problem::invalid("page must be a next_page"))?;
    integer("page", bucket)
}

fn group_by(group: &mut Grouping, value: &str) -> Result<(), Problem> {
    let field = match value {
        "tenant_id" => &mut group.tenant,
        "project_id" => &mut group.project,
        "api_key_id" => &mut group.key,
        "model" | "line_item" => &mut group.model,
        "version_id" => &mut group.version,
        "service_tier" => &mut group.tier,
        _ => {
            return Err(Problem::invalid(
                "group_by must be tenant_id, project_id, api_key_id, model, line_item, version_id or service_tier",
            ));
        }
    };
    *field = true;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &[(&str, &str)]) -> Result<UsageQuery, Problem> {
        let pairs: Vec<_> = query.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        UsageQuery::read(&pairs, 1_000_000)
    }

    #[test]
    fn buckets_are_aligned_and_pages_follow_one_another() {
        let first =
            read(&[("start_time", "3700"), ("end_time", "20000"), ("bucket_width", "1h"), ("limit", "2")]);
        let first = first.unwrap();
        assert_eq!((first.first_bucket, first.next_bucket, first.has_more), (3_600, 10_800, true));
        assert_eq!((first.filter.start, first.filter.end), (3_660, 10_800));
        let page = page_name(first.next_bucket);
        let last = read(&[
            ("start_time", "3700"),
            ("end_time", "20000"),
            ("bucket_width", "1h"),
            ("limit", "9"),
            ("page", &page),
        ])
        .unwrap();
        assert_eq!((last.first_bucket, last.next_bucket, last.has_more), (10_800, 21_600, false));
        assert_eq!((last.filter.start, last.filter.end), (10_800, 20_000));
    }

    #[test]
    fn groups_and_filters() {
        let query = read(&[
            ("start_time", "0"),
            ("group_by[]", "model"),
            ("group_by", "api_key_id"),
            ("models[]", "a"),
            ("models[]", "b"),
        ])
        .unwrap();
        assert_eq!(query.filter.group, Grouping { model: true, key: true, ..Grouping::default() });
        assert_eq!(query.filter.models, ["a", "b"]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for bad in [
            &[][..],
            &[("start_time", "x")],
            &[("start_time", "-1")],
            &[("start_time", "1700000000000")],
            &[("start_time", "5"), ("end_time", "5")],
            &[("start_time", "5"), ("bucket_width", "2h")],
            &[("start_time", "5"), ("limit", "0")],
            &[("start_time", "5"), ("limit", "32")],
            &[("start_time", "5"), ("group_by", "user_id")],
            &[("start_time", "5"), ("page", "7")],
            &[("start_time", "5"), ("who", "me")],
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
