//! `POST /api/v1/price-books/{price_book_id}/prices`

use axum::extract::State;
use axum::response::Response;
use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use serde::Deserialize;
use utoipa::ToSchema;
use weir_domain::price_book::{Price, PriceBook, PriceBookCommand};
use weir_schemas::ids::{PriceBookId, VersionId};

use super::PriceView;
use crate::auth::PlatformAdmin;
use crate::http::App;
use crate::http::extract::{Body, Path, WriteHeaders};
use crate::http::problem::Problem;
use crate::http::schema::{ReadProblems, WriteProblems};
use crate::http::write::{Reply, single};

/// A version's prices per million tokens. Amounts are strings, so that no reader rounds them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetPrice {
    /// Which version.
    #[schema(value_type = String)]
    version_id: VersionId,
    /// From when; now if absent. A moment before now only while the version has no price yet.
    effective_from: Option<DateTime<Utc>>,
    /// Prompt tokens that were computed.
    #[serde(with = "rust_decimal::serde::str")]
    #[schema(value_type = String, example = "0.10")]
    prompt_per_million: Decimal,
    /// Prompt tokens taken from the prefix cache.
    #[serde(with = "rust_decimal::serde::str")]
    #[schema(value_type = String, example = "0.05")]
    cached_prompt_per_million: Decimal,
    /// Generated tokens.
    #[serde(with = "rust_decimal::serde::str")]
    #[schema(value_type = String, example = "0.40")]
    generated_per_million: Decimal,
}

/// Set a version's prices from a moment on. Requests are charged by the price in force when they were received.
#[utoipa::path(post, path = "/api/v1/price-books/{price_book_id}/prices", tag = "prices", request_body = SetPrice,
    params(("price_book_id" = String, Path), ("If-Match" = Option<String>, Header, description = "The ETag that the change is based on."), ("Idempotency-Key" = Option<String>, Header, description = "Names this write; a repeat within a day gets the same answer.")),
    responses((status = 201, body = PriceView, headers(("ETag" = String))), ReadProblems, WriteProblems),
    security(("token" = ["platform:admin"])))]
pub(crate) async fn set_price(
    admin: PlatformAdmin,
    State(app): State<App>,
    Path(id): Path<PriceBookId>,
    headers: WriteHeaders,
    Body { value: body, digest }: Body<SetPrice>,
) -> Result<Response, Problem> {
    let now = app.clock.now();
    let price = Price {
        prompt_per_million: body.prompt_per_million,
        cached_prompt_per_million: body.cached_prompt_per_million,
        generated_per_million: body.generated_per_million,
    };
    let (version, effective_from) = (body.version_id, body.effective_from.unwrap_or(now));
    let command = PriceBookCommand::SetPrice { version, effective_from, price, now };
    let view = |book: &PriceBook| PriceView {
        version_id: version.to_string(),
        effective_from,
        currency: book.currency.clone(),
        prompt_per_million: price.prompt_per_million,
        cached_prompt_per_million: price.cached_prompt_per_million,
        generated_per_million: price.generated_per_million,
    };
    single::<PriceBook, _>(&app, &admin.caller, (headers, &digest), (id, command), |book| {
        Reply::created(format!("/api/v1/price-books/{id}/prices"), book.map(view))
    })
    .await
}
